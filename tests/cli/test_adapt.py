"""adapt.py end to end on bundled records, with a budget of seconds."""

import json
import shutil
import sys

import pandas as pd
import pytest
from omegaconf import OmegaConf

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
    "run_id=tiny",
)


def door(monkeypatch, capsys, folder, *arguments):
    from pruner.cli import adapt

    monkeypatch.setattr(sys, "argv", ["adapt.py", f"outputs={folder}", *arguments])
    code = 0
    try:
        adapt.main()
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, json.loads(out.strip().splitlines()[-1]) if code == 0 else None, err


@pytest.mark.slow
def test_methods_are_compared_and_a_run_goes_on_where_it_stopped(monkeypatch, capsys, tmp_path):
    code, result, err = door(monkeypatch, capsys, tmp_path, *TINY)
    assert code == 0, err
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

    # Lose one cell and the results; what comes back is the same search.
    (run / "cells" / "moa-seed-1.json").rename(tmp_path / "lost.json")
    shutil.copy(run / "results.csv", tmp_path / "before.csv")
    (run / "cells" / "scratch-seed-0.json").unlink()
    code, again, err = door(monkeypatch, capsys, tmp_path, f"resume={run}", "num_workers=2")
    assert code == 0, err
    lost = json.loads((tmp_path / "lost.json").read_text())
    found = json.loads((run / "cells" / "moa-seed-1.json").read_text())
    assert found["curve"]["relative_latency"] == lost["curve"]["relative_latency"]
    assert found["labels"] == lost["labels"]
    assert found["source"] == lost["source"]
    assert again["methods"]["moa"]["area"] == moa["area"]

    # Another method joins; what is there stays and is not computed again.
    before = (run / "cells" / "moa-seed-1.json").stat().st_mtime_ns
    code, more, err = door(monkeypatch, capsys, tmp_path, f"resume={run}", "method=none")
    assert code == 0, err
    assert set(more["methods"]) == {"scratch", "random", "moa", "none"}
    assert set(pd.read_csv(run / "results.csv").method) == set(more["methods"])
    assert (run / "cells" / "moa-seed-1.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_given_model_is_judged_on_its_platform_before_it_is_adapted(
    monkeypatch, capsys, tmp_path
):
    code, result, err = door(monkeypatch, capsys, tmp_path, *TINY, "seeds=[0]", "method=none")
    assert code == 0, err
    given = f"checkpoint={result['run_dir']}/source"
    again = ("seeds=[0]", "method=none", "run_id=given", given)
    code, result, err = door(monkeypatch, capsys, tmp_path, *TINY, *again)
    assert code == 0, err
    # never adapted, it is as good afterwards
    assert result["methods"]["none"]["source_top1_after"]["mean"] == result["source_top1_before"]


def test_methods_with_all_their_seeds_are_finished(tmp_path):
    from pruner.cli.adapt import finished_methods

    (tmp_path / "cells").mkdir()
    for cell in ("moa-seed-0", "moa-seed-1", "ewc-seed-0", "random-seed-0", "random-seed-1"):
        (tmp_path / "cells" / f"{cell}.json").touch()
    assert finished_methods(OmegaConf.create({"seeds": [0, 1]}), tmp_path) == ["moa"]


def test_workloads_that_a_checkpoint_learned_anywhere_are_known():
    from pruner.cli import adapt_data
    from pruner.data.root import RecordRoot
    from pruner.errors import PrunerError
    from pruner.models.checkpoint.checkpoint import CheckpointInfo
    from pruner.models.registry import ModelSpec
    from pruner.places import datasets_folder

    root = RecordRoot(datasets_folder() / "bundled")
    keys = {name: list(adapt_data._read(root, name)) for name in root.platforms}
    here, third = keys["cpu-sse4"] + keys["cpu-avx2"], keys["cpu-avx512"]
    learned = {"cpu-avx2": [keys["cpu-avx2"][0].task], "cpu-avx512": [third[1].task, third[2].task]}
    info = CheckpointInfo(
        model=ModelSpec(name="PaCM"), feature_version="", dataflow="paper", seen_tasks=learned
    )
    seen = adapt_data._seen_workloads(info, root, here)
    assert seen == {k.identity for k in (keys["cpu-avx2"][0], third[1], third[2])}
    elsewhere = CheckpointInfo(
        model=ModelSpec(name="PaCM"),
        feature_version="",
        dataflow="paper",
        seen_tasks={"orin": ["conv2d"]},
    )
    with pytest.raises(PrunerError, match=r"fitted on records of orin, which .* lacks"):
        adapt_data._seen_workloads(elsewhere, root, here)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("method=moaa",), "method=moaa is unknown; known: continue"),
        (("target=cpu-sse4",), "choose two platforms"),
        (("target=null",), "give source=PLATFORM and target=PLATFORM"),
        (("target=k80",), "there are records for: cpu-avx2"),
        (("checkpoint=nowhere",), "checkpoint=nowhere: nowhere does not exist"),
        (("references=[ansr]",), "known: random, ansor"),
        (("num_workers=2", "num_threads=2"), "give num_threads=1, or num_workers=1"),
        (("stop_after=1",), "Could not override 'stop_after'"),
    ],
)
def test_mistakes_are_one_line_that_names_the_fix(monkeypatch, capsys, tmp_path, arguments, says):
    code, _, err = door(monkeypatch, capsys, tmp_path, *TINY, *arguments)
    assert code == 2
    line = [line for line in err.splitlines() if line.startswith("error")]
    assert len(line) == 1
    assert says in line[0]
    assert not (tmp_path / "adapt").exists()  # nothing that a second start would go on with
