"""adapt.py end to end on some of the bundled records, with a budget of seconds."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
import torch

from pruner.errors import PrunerError
from pruner.features import FEATURE_SET_VERSION
from pruner.models.checkpoint.checkpoint import CheckpointInfo, load_checkpoint, save_checkpoint
from pruner.models.networks.mlp import TenSetMLP
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.models.registry import ModelSpec
from tests.paths import DATASETS

TINY = (
    "source=cpu-sse4",
    "target=cpu-avx2",
    "method=moa",
    "references=[random]",
    "seeds=[0,1]",
    "trainer.max_epochs=1",
    "batches.per_task=32",
    "model.width=16",
    "model.dataflow_hidden=8",
    "model.dataflow_width=8",
    "budget=small",
    "budget.trials=60",
    "budget.tasks=2",
    "budget.max_steps=2",
    "budget.labels=[0,20,all]",
    "budget.held_out=2",
    "budget.label_tasks=2",
    "budget.least=6",
    "run_id=tiny",
)
TASKS = ("matmul", "batch_matmul", "pool", "softmax")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Some tasks of both platforms: all have five times as many programs."""
    folder = tmp_path_factory.mktemp("records")
    for platform in ("cpu-sse4", "cpu-avx2"):
        there = folder / "measure_records" / platform
        there.mkdir(parents=True)
        for path in (DATASETS / "bundled/measure_records" / platform).iterdir():
            if path.name.startswith(TASKS):
                (there / path.name).symlink_to(path)
    (folder / "design_spaces").symlink_to(DATASETS / "bundled/design_spaces")
    return f"data.root={folder}"


@pytest.mark.slow
def test_methods_are_compared_and_a_run_goes_on_where_it_stopped(door, tmp_path, root):
    result, _ = door("adapt", f"outputs={tmp_path}", *TINY, root).done
    assert set(result["methods"]) == {"scratch", "random", "moa"}
    moa = result["methods"]["moa"]
    assert moa["area"]["mean"] > 0
    assert moa["trials_to_target"]["runs"] == 2
    assert set(moa["top1_by_labels"]) == {"0", "20", "all"}
    assert 0 < result["source_top1_before"] <= 1
    run = tmp_path / "adapt" / "tiny"
    assert (run / "curves.png").stat().st_size > 10_000
    table = pd.read_csv(run / "results.csv")
    assert len(table) == 6
    adapted, info = load_checkpoint(Path(moa["checkpoint"]))
    assert info.seen_tasks.keys() == {"cpu-sse4", "cpu-avx2"}
    assert len(info.seen_tasks["cpu-avx2"]) == 2  # the tuned tasks
    assert len(info.seen_workloads["cpu-avx2"]) == 2
    assert [one["checkpoint"] for one in info.lineage] == ["source/best.safetensors"]
    forgot = load_checkpoint(run / "models" / "scratch-seed-0.safetensors")[1]
    assert set(forgot.seen_tasks) == {"cpu-avx2"}  # nothing of the source is in its weights
    siamese, about = load_checkpoint(Path(moa["siamese"]))
    assert about.seen_tasks == info.seen_tasks
    given, _ = load_checkpoint(run / "source" / "best.safetensors")
    for changed in (adapted, siamese):
        parts = [ranker.network.state_dict().values() for ranker in (changed, given)]
        assert any(not torch.equal(a, b) for a, b in zip(*parts, strict=True))

    # Lose one cell and the results; what comes back is the same search.
    (run / "cells" / "moa-seed-1.json").rename(tmp_path / "lost.json")
    shutil.copy(run / "results.csv", tmp_path / "before.csv")
    (run / "cells" / "scratch-seed-0.json").unlink()
    again, _ = door("adapt", f"outputs={tmp_path}", f"resume={run}", "num_workers=2").done
    lost = json.loads((tmp_path / "lost.json").read_text())
    found = json.loads((run / "cells" / "moa-seed-1.json").read_text())
    assert found["curve"]["relative_latency"] == lost["curve"]["relative_latency"]
    assert found["labels"] == lost["labels"]
    assert found["source"] == lost["source"]
    assert again["methods"]["moa"]["area"] == moa["area"]

    # Another method joins; what is there stays and is not computed again.
    before = (run / "cells" / "moa-seed-1.json").stat().st_mtime_ns
    assert moa["checkpoint"].startswith(str(run / "models"))
    more, _ = door("adapt", f"outputs={tmp_path}", f"resume={run}", "method=none").done
    assert set(more["methods"]) == {"scratch", "random", "moa", "none"}
    assert set(pd.read_csv(run / "results.csv").method) == set(more["methods"])
    assert (run / "cells" / "moa-seed-1.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_given_model_is_judged_on_its_platform_before_it_is_adapted(door, tmp_path, root):
    tiny = (*TINY, root, "seeds=[0]", "method=none")
    result, _ = door("adapt", f"outputs={tmp_path}", *tiny).done
    given = f"checkpoint={result['run_dir']}/source"
    result, _ = door("adapt", f"outputs={tmp_path}", *tiny, "run_id=given", given).done
    # never adapted, it is as good afterwards
    assert result["methods"]["none"]["source_top1_after"]["mean"] == result["source_top1_before"]


def test_other_epochs_for_a_source_model_that_is_trained_are_refused(
    door, tmp_path, root, monkeypatch
):
    def stopped(*_, **__):
        raise PrunerError("stopped")

    monkeypatch.setattr("pruner.cli.adapt.prepare", stopped)
    assert "stopped" in door("adapt", f"outputs={tmp_path}", *TINY, root).refusal
    run = tmp_path / "adapt" / "tiny"
    metrics = run / "source" / "metrics.json"
    metrics.parent.mkdir()
    metrics.write_text("{}")
    more = (f"outputs={tmp_path}", f"resume={run}", "trainer.max_epochs=9")
    err = door("adapt", *more).refusal
    assert "the source model is trained, with trainer.max_epochs=1; leave" in err
    metrics.unlink()
    assert "stopped" in door("adapt", *more).refusal  # not refused


def test_a_model_that_is_not_the_given_checkpoints_is_refused(door, tmp_path, root):
    ranker = NeuralRanker(TenSetMLP(), ColumnScaler())
    info = CheckpointInfo(
        model=ModelSpec.of(TenSetMLP), feature_version=FEATURE_SET_VERSION, dataflow="paper"
    )
    save_checkpoint(tmp_path / "best.safetensors", ranker, info)
    words = (*TINY, root, f"checkpoint={tmp_path}/best.safetensors")
    code, _, err = door("adapt", f"outputs={tmp_path}", *words)
    assert (code, "leave out model.width=16" in err) == (2, True), err
    assert not (tmp_path / "adapt").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("method=moaa",), "method=moaa is unknown; known: continue"),
        (("target=cpu-sse4",), "choose two platforms"),
        (("target=null",), "give source=PLATFORM and target=PLATFORM"),
        (("target=k80",), "there are records for: cpu-avx2"),
        (("draft.form=paper",), "the paper form is for GPUs; use draft.form=hardware"),
        (("draft.form=papers",), "draft.form=papers"),
        (("checkpoint=nowhere",), "checkpoint nowhere does not exist"),
        (("references=ansr",), "references: ansr is unknown; known: random, scratch_no_draft"),
        (("num_workers=2", "num_threads=2"), "give num_threads=1, or num_workers=1"),
        (("stop_after=1",), "stop_after is unknown"),
        (("policy=gradient",), "policy=pool, ansor or pruner_*"),
        (("policy=pruner_live", "policy.first=lm"), "have no tokens for the language model"),
        (("split=by_operator",), "split is unknown"),
        (("model=xgboost",), "adaptation needs a neural model, such as model=pacm_narrow"),
        (("+variants.fast={of:mao}",), "variants.fast: of=mao is unknown; known: continue"),
        (("+variants.fast=3",), "variants.fast=3: give {of: METHOD"),
        (("+variants.moa={of:moa}",), "conf/adaptation has a method of that name"),
    ],
)
def test_mistakes_are_one_line_that_names_the_fix(door, tmp_path, arguments, says):
    own = [word for word in TINY if "model=xgboost" not in arguments or word[:6] != "model."]
    assert says in door("adapt", f"outputs={tmp_path}", *own, *arguments).refusal
    assert not (tmp_path / "adapt").exists()  # nothing that a second start would go on with
