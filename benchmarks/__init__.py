"""Measurements, each a command that prints what it measured as ratios of one run."""
