"""Build and run candidates in worker processes; every failure is an outcome of one candidate."""
