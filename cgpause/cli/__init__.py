"""The `cgpause` command, one module for each command."""
