"""Faults of TVM: errors that are no refusal of a program, so they must not pass for a refusal."""

import logging

logger = logging.getLogger(__name__)
_told: set[str] = set()


def tell_fault(what: str, error: Exception) -> None:
    """Log a fault of TVM with what it cost; equal faults of a process are logged once.

    The last line of TVM's text says what failed; the lines before are a trace of calls.
    """
    lines = str(error).strip().splitlines() or ["no text"]
    text = f"{what}: {type(error).__name__}: {lines[-1]}"
    if text not in _told:
        _told.add(text)
        logger.warning("fault of TVM: %s", text)
