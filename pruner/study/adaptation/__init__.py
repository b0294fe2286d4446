"""Adaptation methods compared by replaying online tuning on records of another platform."""
