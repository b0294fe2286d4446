"""Meaning to named numbers: statement, dataflow and symbol columns."""
