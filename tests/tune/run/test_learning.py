"""Checkpoints live: what they read of live spaces, what a run leaves, chains of runs."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from pruner import features
from pruner.errors import PrunerError
from pruner.features.batch import FeatureSpec
from pruner.models.adaptation.fitting import OnlineFit
from pruner.models.adaptation.moa import MomentumAdaptation
from pruner.models.adaptation.warm import Scratch, Unchanged
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.columns import SCORE, draft_columns
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from pruner.models.checkpoint.official import official_ranker, read_official
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.program_table import ProgramTable, TaskPrograms
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from pruner.models.training.fit import checkpoint_file, start_of
from pruner.models.trees.xgboost import XGBoostRanker
from pruner.paths import conf_folder
from pruner.search.space import History
from pruner.tune.phases import Phases
from pruner.tune.run.learning import LiveLearner, OnlineModel, SharedModel, TreeModel, learned_score
from pruner.tune.run.verifier import verifier
from pruner.tune.spaces.batched.space import BatchedSpace
from pruner.tune.spaces.union import UnionSpace
from tests.models import synthetic
from tests.tune.designs import designs_of
from tests.tune.run.test_loop import OTHER, SIZES, FakeMeasurer, run

pytestmark = pytest.mark.tvm
NARROW = {"width": 16, "dataflow_hidden": 8, "dataflow_width": 16}
PROGRAMS = 24


@pytest.fixture(scope="module")
def space():
    """A matmul on a GPU, whose programs have the dataflow pattern."""
    designs = designs_of({**SIZES, "epilogue": ["relu"]}, "nvidia/nvidia-a100")
    return UnionSpace([BatchedSpace(design) for design in designs[:4]], Phases())


@pytest.fixture(scope="module")
def draws(space):
    return space.sample(PROGRAMS, np.random.default_rng(0))


def test_live_rows_of_the_release_are_those_of_the_paper_but_for_one_slip(space, draws):
    kinds = (FeatureSpec(dataflow=kind) for kind in ("paper", "official"))
    paper, official = (space.features(draws, kind).dataflow for kind in kinds)
    assert (paper.shape[1], official.shape[1]) == (10, 8)
    has = official.any(axis=(1, 2))  # the pattern
    assert has.any()
    assert not paper[~has].any()
    paper, official = paper[has], official[has]
    assert (official[:, 0, 3] == 1).all()  # it begins with a local tile
    np.testing.assert_array_equal(official[:, :, 1:], paper[:, :8, 1:])
    assert (official[:, :5, 0] == 0).all()  # initialise and stage: no arithmetic
    # Two operations an iteration; the release multiplies by the number of iterations twice.
    iterations = (2.0 ** paper[:, 5:8, 0].astype(np.float64) - 1) / 2
    np.testing.assert_allclose(official[:, 5:8, 0], np.log2(1 + 2 * iterations**2), atol=1e-3)


def info_of(name, arguments, dataflow):
    model, version = ModelSpec(name=name, arguments=arguments), features.FEATURE_SET_VERSION
    return CheckpointInfo(model=model, feature_version=version, dataflow=dataflow)


def saved(path, *, rows=8, seen=(), relative=False):
    torch.manual_seed(0)
    arguments = {**NARROW, "num_dataflow_rows": rows}
    scaler = ColumnScaler()
    scaler.statement_scale.uniform_(1, 40)
    scaler.dataflow_scale.uniform_(1, 40)
    info = info_of("PaCM", arguments, {8: "official", 10: "paper"}[rows]).with_seen(seen)
    ranker = NeuralRanker(PaCM(**arguments), scaler, relative=relative).eval()
    save_checkpoint(path / "best.safetensors", ranker, info)
    return path / "best.safetensors"


def live(path, adaptation, told=None, model=PaCM):
    log = (lambda _: None) if told is None else told.append
    how = {"checkpoint": path, "platform": "cpu-avx2", "seed": 0, "log": log}
    return verifier(model, adaptation, **how)


moa = partial(MomentumAdaptation, fit=OnlineFit(epochs=2, max_steps=2))


def score_of(model, space, rows):
    return learned_score(synthetic.key("t", "cpu-avx2"), space, model, Phases())(rows)


def direct(ranker, found):
    """The network alone on columns that are divided here."""
    line = np.arange(len(found))
    store = ProgramTable.build([TaskPrograms.of(synthetic.key(), found, np.ones(len(line)), line)])
    batch, scaler = store.programs(torch.arange(store.num_programs)), ranker.scaler
    assert (scaler.statement_center == 0).all()
    scaled = replace(
        batch,
        statement=batch.statement / scaler.statement_scale,
        dataflow=batch.dataflow / scaler.dataflow_scale,
    )
    with torch.no_grad():
        return ranker.network.eval()(scaled).numpy()


def test_eight_rows_score_live_programs_as_the_network_does(tmp_path, space, draws):
    path = saved(tmp_path)
    model = live(path, Unchanged)()
    assert model.dataflow == "official"
    found = space.features(draws, FeatureSpec(dataflow="official"))
    assert found.valid.all()
    expected = direct(load_checkpoint(path)[0], found)
    np.testing.assert_allclose(score_of(model, space, draws), expected, rtol=1e-5, atol=1e-6)
    assert len(np.unique(expected)) > PROGRAMS / 2


def test_a_model_that_reads_the_analyzer_gets_it_of_live_programs(space, draws):
    everything = NeuralRanker(PaCM(**NARROW, residual=True), ColumnScaler(), relative=False).eval()
    model = OnlineModel(everything, "paper")
    key = synthetic.key("t", "v100")
    found = space.features(draws, FeatureSpec(extra=draft_columns("v100")))
    expected = found.extra[:, SCORE]
    # before it has learned it ranks as the analyzer does
    score = learned_score(key, space, model, Phases())(draws)
    np.testing.assert_allclose(score, expected, rtol=1e-5)
    analyzer = load_analyzer(conf_folder(), "v100").uncalibrated()
    for number, part in enumerate(space.spaces):
        rows = np.flatnonzero(draws[:, 0] == number)
        drafted = part.draft_score(draws[rows, 1 : 1 + part.num_slots], analyzer)
        legal = np.isfinite(drafted)
        np.testing.assert_allclose(expected[rows][legal], drafted[legal], rtol=1e-5)


def test_the_released_weights_score_live_programs(tmp_path, space, draws, shared):
    weights = read_official(shared / "data" / "official-checkpoints" / "pam_k80_1500.npz")
    arguments = {"num_dataflow_rows": 8, "norm_statistics": "batch"}
    ranker, info = official_ranker(weights), info_of("PaCM", arguments, "official")
    save_checkpoint(tmp_path / "best.safetensors", ranker, info)
    model = live(tmp_path / "best.safetensors", moa)()
    expected = direct(ranker, space.features(draws, FeatureSpec(dataflow="official")))
    # BatchNorm by the candidates: sums of the whole list
    np.testing.assert_allclose(score_of(model, space, draws), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [pytest.param(8, marks=pytest.mark.slow), 10])
def test_a_run_leaves_what_it_learned_and_the_next_goes_on(tmp_path, platform, rows):
    path, told = saved(tmp_path / "k80", rows=rows, seen=[synthetic.key("old", "k80")]), []
    first = tmp_path / "first"
    tuning = run(first, platform, FakeMeasurer(), model=live(path, moa, told))
    assert told == [f"checkpoint={path}: trained on k80, never on cpu-avx2, which is tuned now"]
    files = tuning._prepared.shared.keep(first, learn=True)
    assert {name: path.name for name, path in files.items()} == {
        "adapted": "adapted.safetensors", "siamese": "siamese.safetensors",
    }  # fmt: skip
    assert checkpoint_file(first) == files["adapted"]
    info = load_checkpoint(files["siamese"])[1]
    assert info.seen_tasks == {"cpu-avx2": ["matmul_64_64_64"], "k80": ["old"]}
    assert info.seen_workloads["cpu-avx2"] == {"matmul_64_64_64": '["matmul_layer",64,64,64]'}
    assert [one["checkpoint"] for one in info.lineage] == ["k80/best.safetensors"]

    # B to C: in one process, and through the file
    source = tuning._prepared.shared.model._adaptation.models["siamese"]
    again = start_of(files["siamese"])
    for name, value in source.state_dict().items():
        assert torch.equal(value, again.ranker.state_dict()[name]), name
    second = tmp_path / "second"
    tuning = run(
        second, platform, FakeMeasurer(), specs=(OTHER,), model=live(files["siamese"], moa)
    )
    info = load_checkpoint(tuning._prepared.shared.keep(second, learn=False)["adapted"])[1]
    assert info.seen_tasks["cpu-avx2"] == ["matmul_32_64_64", "matmul_64_64_64"]
    ancestors = [one["checkpoint"] for one in info.lineage]
    assert ancestors == ["k80/best.safetensors", "models/siamese.safetensors"]


def test_a_model_from_scratch_and_trees_are_left_too(tmp_path, platform):
    scratch = partial(Scratch, fit=OnlineFit(epochs=1, max_steps=1))
    models = {"PaCM": live(None, scratch, model=partial(PaCM, **NARROW)), "XGBoostRanker": "trees"}
    for name, model in models.items():
        tuning = run(tmp_path / name, platform, FakeMeasurer(), trials=12, model=model)
        shared = tuning._prepared.shared
        files = shared.keep(tmp_path / name, learn=True)
        version = features.FEATURE_SET_VERSION
        ranker, info = load_checkpoint(files["adapted"], feature_version=version)
        assert info.model.name == name
        assert info.seen_tasks == {"cpu-avx2": ["matmul_64_64_64"]}
        index = torch.arange(4)
        store = ProgramTable.build(one.programs() for one in shared._learned.values())
        expected = shared.model.ranker.score_store(store, index)
        if name == "PaCM":  # a checkpoint does not hold the centres of tasks
            ranker.centers = shared.model.ranker.centers
        np.testing.assert_array_equal(ranker.score_store(store, index), expected)


def trees(path):
    store = synthetic.store()
    every = torch.arange(store.num_programs)
    arguments = {"num_rounds": 3, "min_child_weight": 0}
    ranker = XGBoostRanker(**arguments)
    ranker.fit(store, every, every[:0], seed=0, num_threads=1)
    save_checkpoint(path, ranker, info_of("XGBoostRanker", arguments, "paper"))
    return ranker


def test_programs_without_a_turn_are_no_part_of_what_is_learned(space, draws):
    shared, rng = SharedModel(TreeModel(seed=0)), np.random.default_rng(0)
    learner = LiveLearner(synthetic.key("t", "cpu-avx2"), space, shared, Phases(), rng)
    history, latency_s = History(space), np.arange(1.0, PROGRAMS + 1)
    latency_s[5] = np.inf
    history.add(draws, latency_s, np.arange(PROGRAMS) != 3)
    learner.note(history)
    found, kept = learner.programs(), [n for n in range(PROGRAMS) if n != 3]
    assert found.line.tolist() == kept
    label = ProgramTable.build([found]).label.numpy()
    np.testing.assert_allclose(label, 1 / latency_s[kept], rtol=1e-6)  # 0 for the failure


def test_a_batch_that_hardly_adds_waits_for_the_next_fit(space, draws):
    """Half as many again must be new: one beside 4 is not, two are, two beside 6 are not."""

    class Counted(TreeModel):
        learned = ()

        def learn(self, store):
            self.learned = (*self.learned, len(store.label))

    model, rng = Counted(seed=0), np.random.default_rng(0)
    shared = SharedModel(model, refit=0.5)
    learner = LiveLearner(synthetic.key("t", "cpu-avx2"), space, shared, Phases(), rng)
    history = History(space)

    def measured(start, end):
        history.add(draws[start:end], np.arange(1.0, end - start + 1))
        learner.note(history)
        shared.fit()

    measured(0, 4)
    measured(4, 5)
    measured(5, 6)
    assert model.learned == (4, 6)
    measured(6, 8)
    assert model.learned == (4, 6)
    state = shared.state()
    assert (state["fitted"], state["waiting"]) == (6, 2)
    shared.fit(whatever=True)
    assert model.learned == (4, 6, 8)


def test_trained_trees_score_as_they_are_and_other_rows_are_refused(tmp_path, space, draws):
    ranker = trees(tmp_path / "best.safetensors")
    model = live(tmp_path / "best.safetensors", Unchanged)()
    expected = ranker.score(space.features(draws))
    np.testing.assert_array_equal(score_of(model, space, draws), expected)
    assert model.keep(tmp_path / "nothing", []) == {}
    with pytest.raises(PrunerError, match="XGBoostRanker cannot be adapted; adaptation=none"):
        live(tmp_path / "best.safetensors", moa)
    with pytest.raises(PrunerError, match="made for 9 dataflow rows, live spaces compute 8 or 10"):
        live(None, Unchanged, model=partial(PaCM, num_dataflow_rows=9))
