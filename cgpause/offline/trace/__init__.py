"""Replay of a recorded node under a policy, and reports of it."""
