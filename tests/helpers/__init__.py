"""Helpers of the tests: made trees, daemons, ledgers, nodes, command lines."""
