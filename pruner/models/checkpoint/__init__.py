"""Checkpoints of this project and of the official release."""
