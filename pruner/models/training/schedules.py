"""Learning-rate schedules: factories of (optimiser, total steps)."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def warmup_cosine(
    optimizer: Optimizer, total_steps: int, *, warmup: float = 0.05, final: float = 0.01
) -> LambdaLR:
    """Rise linearly for the `warmup` share of steps, then fall (half cosine).

    ``factor = final + (1 - final) (1 + cos(pi p)) / 2`` with p the progress after the warm-up.
    """
    rise = max(1, round(warmup * total_steps))

    def factor(step: int) -> float:
        if step < rise:
            # Not from 0: the first step would change nothing.
            return (step + 1) / rise
        progress = min(1.0, (step - rise) / max(1, total_steps - rise))
        return final + (1.0 - final) * (1.0 + math.cos(math.pi * progress)) / 2.0

    return LambdaLR(optimizer, factor)
