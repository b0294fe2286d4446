"""Ansor's engine: transform steps applied to a compute DAG, for N decision vectors at once."""
