"""What a command tells: lines for the user on stderr, one JSON object as the last stdout line."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from pruner.files import jsonable


def say(line: str) -> None:
    """Tell the user something, on stderr."""
    print(line, file=sys.stderr, flush=True)


def print_result(result: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout."""
    print(json.dumps(jsonable(result)), flush=True)
