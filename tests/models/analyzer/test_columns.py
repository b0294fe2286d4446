"""The analyzer's columns: their score is the analyzer's, their terms are its ablations."""

from dataclasses import replace

import numpy as np
import pytest

from pruner.features.batch import FeatureSpec, featurize
from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.columns import DRAFT_COLUMNS, NUM_DRAFT_COLUMNS, SCORE, draft_columns
from pruner.models.analyzer.cpu import CpuSwitches
from pruner.models.analyzer.switches import HardwareSwitches
from pruner.paths import conf_folder
from pruner.program.replay import nests_of
from tests.features.matmul_skeleton import matmul_dag, matmul_steps

SHAPE = (1024, 960, 1024)
TILES = [
    ((1, 8, 4, 4), (1, 6, 2, 5), (8, 4)),
    ((2, 8, 2, 2), (2, 8, 2, 2), (4, 4)),
    ((1, 4, 2, 8), (1, 16, 1, 2), (16, 2)),
]
PLACE = {column.name: place for place, column in enumerate(DRAFT_COLUMNS)}


def dag():
    return matmul_dag(SHAPE[0], SHAPE[2], SHAPE[1])


def steps():
    return [matmul_steps(SHAPE[0], SHAPE[2], SHAPE[1], *tiles) for tiles in TILES]


@pytest.mark.parametrize("platform", ["v100", "k80"])
def test_scores_and_terms_are_those_of_the_analyzer_and_its_ablations(platform):
    found = featurize(dag(), steps(), FeatureSpec(extra=draft_columns(platform)))
    assert found.valid.all()
    assert found.extra.shape == (len(steps()), NUM_DRAFT_COLUMNS)
    analyzer = load_analyzer(conf_folder(), platform).uncalibrated()
    score = analyzer.score_steps(dag(), steps())
    np.testing.assert_allclose(found.extra[:, SCORE], score, rtol=1e-5)
    for name in HardwareSwitches.names():
        ablated = replace(analyzer, without=name).score_steps(dag(), steps())
        np.testing.assert_allclose(found.extra[:, PLACE[name]], ablated - score, atol=1e-4)


def test_symbols_are_sums_over_statements_and_those_of_the_other_kind_are_zero():
    found = featurize(dag(), steps(), FeatureSpec(extra=draft_columns("v100")))
    analyzer = load_analyzer(conf_folder(), "v100")
    for rows, nests in nests_of(dag(), steps()):
        total = analyzer.symbols(nests)["l2_comp_count"].sum(axis=0)
        expected = np.log2(1 + total)
        np.testing.assert_allclose(
            found.extra[rows, PLACE["gpu.l2_comp_count"]], expected, rtol=1e-5
        )
    of_cpus = [place for name, place in PLACE.items() if name.startswith("cpu.")]
    assert not found.extra[:, of_cpus].any()
    only_cpus = set(CpuSwitches.names()) - set(HardwareSwitches.names())
    assert not found.extra[:, [PLACE[name] for name in only_cpus]].any()


def test_features_without_them_are_what_they_were():
    bare = featurize(dag(), steps())
    with_them = featurize(dag(), steps(), FeatureSpec(extra=draft_columns("v100")))
    assert bare.extra is None
    for name in ("statement", "dataflow", "row_start", "valid"):
        assert np.array_equal(getattr(bare, name), getattr(with_them, name)), name
    chosen = np.array([2, 0])
    assert np.array_equal(with_them.take(chosen).extra, with_them.extra[chosen])
