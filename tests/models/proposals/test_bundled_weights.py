"""The proposal weights that come with the project: whole, small, better than chance when unseen."""

from hashlib import sha256

import numpy as np
import pytest

from experiments.proposals.pools import read_pools
from pruner.data.frozen import FrozenSplit
from pruner.data.root import RecordRoot
from pruner.models.proposals.proposal_model import ProposalModel, bundled_weights
from pruner.search.offline.recorded_space import RecordedSpace
from pruner.search.propose_lm import Proposer
from tests.paths import DATASETS


def test_the_file_is_small_and_as_it_was_made():
    content = bundled_weights().read_bytes()
    sums = (bundled_weights().parent / "SHA256SUMS").read_text(encoding="utf-8")
    assert sums == f"{sha256(content).hexdigest()}  {bundled_weights().name}\n"
    assert len(content) < 2_000_000
    assert not [word for word in (b"/work", b"/home", b"/tmp") if word in content]
    assert sum(p.numel() for p in ProposalModel.load(bundled_weights()).network.parameters()) < 3e5


@pytest.mark.parametrize("task", ["batch_matmul_12_1_128_64_128", "conv2d_bias_relu_1_256_14_14"])
def test_on_unseen_tasks_of_an_h200_its_first_programs_beat_chance(task, tmp_path):
    split = FrozenSplit.load("h200", 0)
    records = tmp_path / "measure_records" / "h200"
    records.mkdir(parents=True)
    (file,) = (DATASETS / "h200" / "measure_records" / "h200").glob(f"{task}*")
    (records / file.name).symlink_to(file)
    (tmp_path / "design_spaces").symlink_to(DATASETS / "h200" / "design_spaces")
    (pool,) = read_pools(RecordRoot(tmp_path), "h200")
    assert split.sides[pool.key.identity] == "test"
    space = RecordedSpace(pool.decisions, pool.spaces)
    model = ProposalModel.load(bundled_weights())
    order = np.argsort(-Proposer(space, model).log_ratio(pool.decisions), kind="stable")
    first = np.sort(pool.latency_s[order[:8]])
    # the mean speed of the first quarter against the mean speed of all programs
    assert np.mean(1 / first) > 1.5 * np.mean(1 / pool.latency_s)
    assert pool.lost == 0
