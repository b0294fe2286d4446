"""Where a block may be computed."""

import numpy as np

from pruner.program.tir.locations import allowed_locations, settle
from tests.program.tir_trees import blurred, tile


def test_locations_skip_unit_loops_and_settle_before_what_is_gone():
    tree, mid, out = blurred(64)
    tile(tree, out, [(None, np.array([64, 4]), 2)])
    allowed = allowed_locations(tree, mid)
    assert sorted(allowed) == [-2, -1, 0, 1, 2]
    assert np.broadcast_to(allowed[0], 2).tolist() == [False, True]
    assert settle(tree, mid, np.array([0, 0])).tolist() == [-1, 0]
