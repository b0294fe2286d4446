"""Gradient-boosted trees as rankers."""
