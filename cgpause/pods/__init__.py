"""Discovers the node's pods, their names and facts, and samples their memory."""
