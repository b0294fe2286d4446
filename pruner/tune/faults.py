"""Log faults of TVM, errors that must not pass for a refusal."""

import logging

logger = logging.getLogger(__name__)
_logged: set[str] = set()


def log_fault(what: str, error: Exception) -> None:
    """Log a fault of TVM by its text's last line, once for equal faults."""
    lines = str(error).strip().splitlines() or ["no text"]
    text = f"{what}: {type(error).__name__}: {lines[-1]}"
    if text not in _logged:
        _logged.add(text)
        logger.warning("fault of TVM: %s", text)
