"""Labels: how good a program is among the programs of its own task.

Latencies of different tasks differ by orders of magnitude and latencies of different platforms are
not comparable, so every label is normalised within one task (Pruner, ASPLOS'25, section 4; TenSet).
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64


def best_latency_s(latency_s: Float64[np.ndarray, " row"]) -> float:
    """The smallest latency in seconds; infinite for no row or only failed rows."""
    return float(np.min(latency_s, initial=np.inf))


def relative_throughput(
    latency_s: Float64[np.ndarray, " row"], best_s: float | None = None
) -> Float64[np.ndarray, " row"]:
    """``label = best_s / latency_s``: 1 for the best program, towards 0 for slow ones.

    Failed measurements have infinite latency and so label exactly 0. `best_s` is the reference in
    seconds where it is known from elsewhere (the best of the whole task when `latency_s` is a part
    of it); it must not exceed any latency given, or labels above 1 would appear.

    Raises:
        ValueError: `best_s` is larger than the smallest latency.
    """
    own_best_s = best_latency_s(latency_s)
    reference_s = own_best_s if best_s is None else best_s
    if reference_s > own_best_s:
        raise ValueError(f"best_s={reference_s} s, but a latency is {own_best_s} s")
    if not np.isfinite(reference_s):
        return np.zeros_like(latency_s)
    return reference_s / latency_s


def relative_noise(costs_s: Sequence[tuple[float, ...]]) -> Float64[np.ndarray, " row"]:
    """Standard deviation of the repeated timings over their mean (n - 1 in the denominator).

    NaN where a program was timed fewer than twice: the noise is unknown then, not zero.
    """
    return np.array(
        [np.std(costs, ddof=1) / np.mean(costs) if len(costs) > 1 else np.nan for costs in costs_s],
        dtype=np.float64,
    )
