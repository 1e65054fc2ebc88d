"""`python -m cgpause` is the `cgpause` command."""

from cgpause.cli import main

main()
