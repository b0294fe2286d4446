"""Meaning to named numbers: features of N programs at once."""
