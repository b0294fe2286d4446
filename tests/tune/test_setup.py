from types import SimpleNamespace

import numpy as np
import pytest

from pruner.errors import PrunerError

pytestmark = pytest.mark.tvm


def test_a_policy_that_live_tuning_does_not_know_is_a_users_mistake():
    from pruner.tune.phases import Phases
    from pruner.tune.run.setup import SearchOptions, _policy

    class Mine: ...

    options = SearchOptions(policy=Mine(), analyzer=None, model=None, platform_name="p", seed=0)
    space = SimpleNamespace(draft_score=None, spaces=[])
    with pytest.raises(PrunerError, match="cannot search with Mine"):
        _policy(None, space, None, options, None, Phases(), np.random.default_rng(0))
