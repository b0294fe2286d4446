"""Jobs of workers that need no TVM."""

import time


def ready():
    """The worker is there."""
    return True


def nap(seconds):
    """Sleep, and return how long."""
    time.sleep(seconds)
    return seconds
