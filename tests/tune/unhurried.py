"""Limits for tests of complete commands: a busy machine fails no program of theirs."""

UNHURRIED = [f"measure.{job}_timeout_s=300" for job in ("build", "run", "reference")]
