"""`python -m cgpause` is the `cgpause` command."""

from cgpause.cli.main import main

main()
