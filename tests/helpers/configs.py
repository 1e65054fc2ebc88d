"""Problems found in a configuration text."""

from __future__ import annotations

from cgpause.config.load import parse_config
from cgpause.core.errors import ConfigError, ConfigProblem


def problems(text: str) -> list[str]:
    """Return the key of each problem in a text; an empty list for a valid configuration."""
    return [p.key for p in all_problems(text)]


def all_problems(text: str) -> tuple[ConfigProblem, ...]:
    try:
        parse_config(text, "test.toml")
    except ConfigError as e:
        return e.problems
    return ()


def only_message(text: str) -> str:
    (problem,) = all_problems(text)
    return problem.message
