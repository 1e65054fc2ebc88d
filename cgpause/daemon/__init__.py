"""The loop: sample, decide, act, publish."""
