"""Searches of others in the same harness: MetaSchedule's, and Ansor in its own environment."""
