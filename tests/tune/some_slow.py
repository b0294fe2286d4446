"""Parameters of which some are slow."""

import pytest


def some_slow(names, fast, slow):
    """Parametrise a test; values are tuples where there are several names."""
    marked = [one if isinstance(one, tuple) else (one,) for one in slow]
    params = [*fast, *(pytest.param(*one, marks=pytest.mark.slow) for one in marked)]
    return pytest.mark.parametrize(names, params)
