"""The decision: which pods to pause and resume, as pure functions of values."""
