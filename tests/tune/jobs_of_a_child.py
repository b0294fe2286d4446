"""Jobs that a test's child does."""

import os
import sys

from pruner.errors import PrunerError
from pruner.tune.child import serve


def count(path):
    """Write how often it was asked into the file."""
    ASKED.append(path)
    path.write_text(str(len(ASKED)))
    sys.stdout.write("counted\n")


def refuse(path):
    """A user's mistake."""
    raise PrunerError(f"{path.name} is wrong")


def die(path):
    """A crash."""
    sys.stderr.write("last words")
    sys.stderr.flush()
    os._exit(7)


ASKED = []
sys.stdout.write("what a library prints when it is imported is no answer\n")

if __name__ == "__main__":
    serve({"count": count, "refuse": refuse, "die": die})
