"""A TenSet data set as downloaded is a data root: records by task, operators in network_info."""

import gzip
import json

import numpy as np
import pytest

from tests.program.tenset_tasks import unpack_network_info

CHOSEN = 6  # tasks for each target


@pytest.fixture(scope="module")
def tenset_root(shared, tmp_path_factory):
    """``network_info`` and ``measure_records/<platform>/([key],target).json``, as downloaded."""
    root = tmp_path_factory.mktemp("tenset") / "dataset"
    golden = sorted((shared / "golden" / "tenset").glob("*.npz"))
    if not golden:
        pytest.skip("no TenSet records: ../shared/golden/tenset is absent")
    network_info = root / "network_info"
    network_info.mkdir(parents=True)
    unpack_network_info(shared, network_info)
    for platform, target in (("t4", "cuda"), ("graviton2", "llvm")):
        folder = root / "measure_records" / platform
        folder.mkdir(parents=True)
        with_programs = [f for f in golden if f.name.startswith(target) and f.stat().st_size > 4000]
        for file in with_programs[:: len(with_programs) // CHOSEN][:CHOSEN]:
            with gzip.open(file.with_suffix(".json.gz"), "rt") as lines:
                records = [json.loads(line) for line in lines]
            for number, record in enumerate(records):
                record["r"][0] = [1e-3 * (1 + number)]  # generated, never measured
            key = json.loads(records[0]["i"][0][0])
            name = "(" + json.dumps(key, separators=(",", ":")) + f",{target}).json"
            (folder / name).write_text("".join(json.dumps(r) + "\n" for r in records))
    return root, golden


def test_featurize_train_and_evaluate_take_it(run, tenset_root, tmp_path):
    root, _ = tenset_root
    data = (f"data.root={root}", "data.platform=t4")
    written = run("featurize", *data, f"out={tmp_path}/out", "num_workers=1", "features=official")
    assert written["files"] == CHOSEN
    assert written["failed"] <= 0.1 * written["programs"]
    trained = run(
        "train",
        *data,
        "model=tensetmlp",
        "split=within_task",
        "trainer.max_epochs=1",
        "logger=csv",
        "min_programs=1",
        "run_id=r",
    )
    judged = run("evaluate", *data, f"checkpoint={trained['checkpoint']}", "tasks=all")
    assert judged["num_tasks"] == CHOSEN
    assert judged["num_programs"] + written["failed"] == written["programs"]


@pytest.mark.parametrize(("platform", "target"), [("t4", "cuda"), ("graviton2", "llvm")])
def test_features_are_the_official_ones(run, tenset_root, tmp_path, platform, target):
    root, golden = tenset_root
    run(
        "featurize",
        f"data.root={root}",
        f"data.platform={platform}",
        f"out={tmp_path}/out",
        "num_workers=1",
        "features=official",
    )
    close = total = 0
    by_lines = {g.with_suffix(".json.gz"): g for g in golden if g.name.startswith(target)}
    for records, features in by_lines.items():
        with gzip.open(records, "rt") as lines:
            key = json.loads(json.loads(lines.readline())["i"][0][0])
        name = "(" + json.dumps(key, separators=(",", ":")) + f",{target})"
        written = tmp_path / "out" / platform / f"{name}.npz"
        if not written.exists():
            continue
        with np.load(features) as wanted, np.load(written) as found:
            for line, statement in enumerate(found["statement"]):
                if f"{line}.statement" in wanted:
                    expected = wanted[f"{line}.statement"]
                    rows = statement[: found["num_statements"][line]]
                    total += 1
                    close += rows.shape == expected.shape and bool(
                        np.isclose(np.sort(rows[:, 161]), np.sort(expected[:, 161])).all()
                    )
    assert total >= CHOSEN
    assert close >= 0.9 * total  # the columns themselves are compared in tests/features


def test_without_network_info_the_reason_is_told(run, tenset_root, tmp_path):
    root, _ = tenset_root
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "measure_records").symlink_to(root / "measure_records")
    written = run(
        "featurize", f"data.root={bare}", "data.platform=t4", f"out={tmp_path}/out", "num_workers=1"
    )
    assert written["failures"] == {"unknown-task": written["programs"]}
