"""Checks the configuration before a reload, as the unit's first ExecReload=.

    python -m cgpause.daemon.reload [options of cgpause.daemon]

A bad file makes `systemctl reload` fail and say why. The daemon alone would only log the error and keep the old
configuration.
"""

from __future__ import annotations

import logging
import sys

from cgpause.config.arguments import parse_options
from cgpause.config.load import load_config
from cgpause.core.errors import ConfigError, Exit
from cgpause.kernel import logfmt

log = logging.getLogger(__name__)


def main(argv: list[str] | None = None) -> int:
    """Return 0 if a daemon with these options accepts the present configuration, else log its errors and return 2."""
    options = parse_options(argv)
    logfmt.set_up(verbose=options.verbose)
    try:
        load_config(options.config_file, must_exist=options.config_path is not None)
    except ConfigError as e:
        for problem in str(e).splitlines():
            log.error("%s", problem)
        return Exit.USAGE
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main())
