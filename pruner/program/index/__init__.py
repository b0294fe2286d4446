"""Index arithmetic on arrays, for N programs at once."""
