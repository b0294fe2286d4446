"""Treat numbers too small for full speed as zero.

The weights of a unit that never fires only decay, and Adam's mean of their gradients halves with
every seventh step: after some 800 steps it is below 2**-126 and stays there. A CPU takes many times
longer for such a number, so a long fit would become slower and slower
(``benchmarks/denormals.py``).
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Run the body with denormals as zero in this thread, if possible."""
    before = are_flushed()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def are_flushed() -> bool:
    """Whether this thread's arithmetic rounds denormal numbers to zero."""
    # torch cannot read the flag; half of the smallest normal number shows it.
    return bool((torch.tensor([SMALLEST_NORMAL]) / 2 == 0).item())
