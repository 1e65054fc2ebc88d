"""On any bytes, a parser either succeeds or reports them as malformed; see helpers/fuzz_targets.py."""

from __future__ import annotations

import pytest
from helpers.fuzz_targets import TARGETS, Target
from hypothesis import given, settings
from hypothesis import strategies as st

SPLICES = st.binary(max_size=8) | st.sampled_from(
    [b"\0", b"\n", b"\r", b"-1", b"1e999", b"nan", b"9" * 20, b"9" * 30, b"\xff", b"{", b'"']
)


@st.composite
def spoiled(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Return nearly valid bytes: a seed with parts cut out, doubled, or replaced."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 20)))
        data = data[:start] + draw(SPLICES | st.just(data[start:end] * 2)) + data[end:]
    return data


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_what_the_parser_takes(name: str) -> None:
    for seed in TARGETS[name].seeds:
        assert TARGETS[name].run(seed), seed


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@settings(deadline=None, max_examples=200)
@given(data=st.data())
def test_any_bytes(target: Target, data: st.DataObject) -> None:
    target.run(data.draw(st.binary(max_size=300) | spoiled(target.seeds)))
