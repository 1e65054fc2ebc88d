"""Which pods exist, what they are called, and how much memory they use."""
