"""`scripts/demo`: the same jobs without cgpause and with it."""
