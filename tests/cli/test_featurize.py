import os
import signal

import numpy as np
import pytest

from pruner.cli.featurize import Plan, featurize_file, reports
from pruner.data.quarantine import read_report
from pruner.errors import PrunerError, UnsupportedProgram
from pruner.features import FeatureSpec
from pruner.processes import in_workers
from tests.cli import toy_records
from tests.models.programs.contradicted import contradicted


@pytest.fixture
def featurize(command, toy_root, tmp_path):
    def run(*arguments):
        return command(
            "featurize",
            f"data.root={toy_root}",
            f"out={tmp_path / 'out'}",
            "num_workers=1",
            *arguments,
        )

    return run


def stored(tmp_path, name="v100/matmul_64_64_64.npz"):
    with np.load(tmp_path / "out" / name, allow_pickle=False) as archive:
        return dict(archive)


def test_one_archive_for_each_record_file(featurize, tmp_path):
    result, _ = featurize("platform=v100").done
    assert result["programs"] == 6 * 16
    assert result["failed"] == 0
    assert result["programs_per_second"] > 0
    assert sorted(p.name for p in (tmp_path / "out").rglob("*")) == sorted(
        ["v100", *(f"matmul_{m}_{k}_{n}.npz" for m, k, n in toy_records.SHAPES)]
    )
    arrays = stored(tmp_path)
    assert arrays["index"].tolist() == list(range(16))  # also the record that failed to run
    assert arrays["statement"].shape == (16, 2, 164)
    assert arrays["statement"].dtype == np.float32
    assert arrays["dataflow"].shape == (16, 10, 23)
    assert arrays["num_statements"].tolist() == [2] * 16
    assert arrays["valid"].all()
    assert "psa" not in arrays
    assert arrays["statement"][1, 0, 1] == pytest.approx(np.log2(17))  # line 1: unroll 16


def test_official_dataflow_and_psa(featurize, tmp_path):
    assert featurize("features=official", "features.psa=true")[0] == 0
    arrays = stored(tmp_path, "k80/matmul_64_64_64.npz")
    assert arrays["dataflow"].shape == (16, 8, 23)
    assert arrays["psa"].shape == (16, 2, 11)


def test_files_already_there_are_kept_and_others_made(featurize, tmp_path):
    featurize("platform=v100")
    path = tmp_path / "out/v100/matmul_64_64_64.npz"
    before = path.stat().st_mtime_ns
    (tmp_path / "out/v100/matmul_16_16_16.npz").unlink()
    (tmp_path / "out/v100/matmul_96_48_24.npz").write_bytes(b"half a file")
    _, result, _ = featurize("platform=v100")
    assert result["files_reused"] == 4
    whole = path.read_bytes()
    middle = len(whole) // 2
    packing = whole.rindex(b"PK\x01\x02") + 10  # of a member: a way that nobody knows
    for damaged in (
        whole[:-9], whole[:middle], flipped(whole, middle), flipped(whole, 1),
        flipped(whole, packing),
    ):  # fmt: skip
        path.write_bytes(damaged)
        assert featurize("platform=v100")[1]["files_reused"] == 5
    path.write_bytes(whole)
    os.utime(path, ns=(before, before))
    _, result, _ = featurize("platform=v100")
    assert result["files_reused"] == 6
    assert result["programs"] == 6 * 16
    assert path.stat().st_mtime_ns == before


def flipped(content, place):
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def test_other_settings_or_records_make_them_anew(featurize, tmp_path, toy_root, monkeypatch):
    featurize("platform=v100")
    assert featurize("platform=v100", "features=official")[1]["files_reused"] == 0
    source = toy_root / "measure_records/v100/matmul_64_64_64.json"
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:5]))
    _, result, _ = featurize("platform=v100", "features=official")
    assert result["files_reused"] == 5
    assert stored(tmp_path)["index"].tolist() == list(range(5))
    (toy_root / "network_info").mkdir()
    (toy_root / "network_info/net.task.pkl").touch()
    _, result, _ = featurize("platform=v100", "features=official")
    assert (result["files_reused"], result["failed"]) == (0, 0)
    monkeypatch.setattr("pruner.models.programs.cache._code_digest", lambda: "other sources")
    for reused in (0, 6):
        assert featurize("platform=v100", "features=official")[1]["files_reused"] == reused


def test_a_file_that_cannot_be_read_is_set_aside(featurize, toy_root):
    (toy_root / "measure_records/v100/unreadable.json").symlink_to("/proc/self/mem")
    result, _ = featurize("platform=v100").done
    assert (result["files"], result["programs"]) == (7, 6 * 16)
    assert result["quarantined"] == {"unreadable_file": 1}


def test_an_interrupted_run_leaves_no_half_file(featurize, tmp_path, monkeypatch):
    import pruner.features

    calls = []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return toy_records.featurize_records(*args, **kwargs)

    monkeypatch.setattr(pruner.features, "featurize_records", interrupted)
    code, _, err = featurize("platform=v100")
    assert code == 130
    assert err.strip().endswith("interrupted")
    assert len(list((tmp_path / "out/v100").iterdir())) == 2
    assert featurize("platform=v100")[1]["files_reused"] == 2


def test_unsupported_tasks_are_counted_by_reason(featurize, tmp_path, monkeypatch):
    import pruner.features

    def refuse(*args, **kwargs):
        raise UnsupportedProgram("unknown-operator", "matmul_layer")

    monkeypatch.setattr(pruner.features, "featurize_records", refuse)
    code, result, _ = featurize("platform=v100")
    assert code == 0
    assert result["failed"] == result["programs"] == 6 * 16
    assert result["failures"] == {"unknown-operator": 6 * 16}
    assert not stored(tmp_path)["valid"].any()
    (entry,) = read_report(tmp_path / "out/v100/matmul_64_64_64.quarantine.jsonl")
    assert (entry.line, entry.detail) == (0, "unknown-operator: all 16 programs of the task")
    assert result["quarantined"] == {}


def test_a_program_that_cannot_be_replayed_has_file_line_and_reason(tmp_path):
    """Real features: the extent on the third line is not that of its loop."""
    (file,) = contradicted(tmp_path / "records").task_files(["cpu-avx2"])
    plan = Plan(out=tmp_path / "out", spec=FeatureSpec(), basis={})
    report = featurize_file(file, plan)
    assert report.failures == {"contradicting-extent": 1}
    assert not report.quarantined
    (entry,) = read_report(tmp_path / "out/cpu-avx2/matmul_128_128_128.quarantine.jsonl")
    assert (entry.file, entry.line) == (str(file.path), 2)
    assert (entry.reason, entry.detail) == ("not_replayed", "contradicting-extent")
    assert featurize_file(file, plan).reused
    assert stored(tmp_path, "cpu-avx2/matmul_128_128_128.npz")["valid"].tolist() == [
        True, True, False, True, True,
    ]  # fmt: skip


def end(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_that_somebody_else_ends_is_one_line(tmp_path, monkeypatch, method):
    """Forked, a worker imports nothing; spawned workers of a function are in test_processes."""
    files = contradicted(tmp_path / "records").task_files(["cpu-avx2"])
    plan = Plan(out=tmp_path / "out", spec=FeatureSpec(), basis={})
    monkeypatch.setattr("pruner.cli.featurize.featurize_file", end)
    if method == "fork":
        forked = lambda jobs, run, number, **_: in_workers(jobs, run, number)  # noqa: E731
        monkeypatch.setattr("pruner.cli.featurize.in_workers", forked)
    with pytest.raises(PrunerError, match="a worker process was ended, perhaps for lack of memory"):
        list(reports(files, plan, num_workers=2))
    monkeypatch.undo()
    assert not next(reports(files, plan, num_workers=1)).reused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["platform=orin"], "no records for platform=orin"), (["out=null"], "out=DIR is missing")],
)
def test_mistakes_are_one_line_and_code_2(featurize, arguments, message):
    assert message in featurize(*arguments).refusal
