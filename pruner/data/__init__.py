"""What was measured: record readers, quarantine, dataset layout, splits.

One validity rule decides which line of a log is a record (`pruner.data.parse`). A line that breaks
it is quarantined with file, line and reason, and reading goes on; a failed measurement
(``error_no != 0``) is a good line with ``valid=False``.
"""
