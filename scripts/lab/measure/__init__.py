"""Measurements; each prints JSON."""
