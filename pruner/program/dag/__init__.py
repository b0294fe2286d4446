"""Expressions and compute DAGs: a program before any schedule."""
