"""The volume between points and a reference."""

from collections.abc import Sequence

import numpy as np

from pruner.lazy import optional
from pruner.search.objectives import Points


def hypervolume(points: Points, reference: Sequence[float]) -> float:
    """Volume between points and a reference, by pymoo; smaller is better.

    Points beyond the reference add nothing. Raises `MissingExtra`.
    """
    if not len(points):
        return 0.0
    library = optional("pymoo.indicators.hv", "objectives")
    return float(library.HV(ref_point=np.asarray(reference))(points))
