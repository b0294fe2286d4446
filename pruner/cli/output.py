"""What a command tells: lines for the user on stderr, one JSON object as the last stdout line."""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from pruner.files import jsonable


def say(line: str) -> None:
    """Tell the user something, on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_result(result: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    print(json.dumps(jsonable(result)), flush=True)


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows in columns of equal width, numbers with four digits; what a row lacks stays empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in text) for column in range(len(names))]
    lines = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in text)
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
