"""The report of a network's run holds what its folder says, in one file, whatever is missing."""

import json
import re

import pytest
from matplotlib.figure import Figure

from pruner.errors import DataError
from pruner.study.network.page import write_report
from pruner.study.network.run import read_network_run
from pruner.tune.deploy.forms import OTHER
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.request import REQUEST, TASKS, NetworkRequest
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.variants.choosing import Alternative, Alternatives, VariantReport
from tests.study.network.fabricated import contender, fabricate, trial

TRIALS = [("conv_a", 4e-3, 1.0), ("dense_b", 2e-3, 2.0), ("conv_a", 1.5e-3, 3.0)]


@pytest.fixture
def folder(tmp_path):
    failed = {"name": "compile", "label": "compile", "error": "no C++ compiler <g++>"}
    rows = [contender("ours", 5e-3), contender("eager", 20e-3, relative_error=None), failed]
    return fabricate(tmp_path / "run", TRIALS, contenders=rows)


@pytest.fixture
def no_pictures(monkeypatch):
    """Most of the time of a page is that of its pictures."""
    monkeypatch.setattr(Figure, "savefig", lambda _, file, **__: file.write("<svg></svg>"))


def test_what_the_folder_says_is_read(folder):
    run = read_network_run(folder)
    assert run.estimate_s == pytest.approx(2 * 1.5e-3 + 2e-3)
    assert run.command == "tune.py network=tiny seed=7"
    assert run.curve.trial.tolist() == [2, 3]  # after the first, one task has no program
    assert run.curve.best_s.tolist() == pytest.approx([10e-3, 5e-3])
    conv, dense, copy = run.tasks
    assert conv.gflops_per_s == pytest.approx(2.0)  # 3 MFLOP in 1.5 ms
    assert (dense.total_s, copy.total_s, copy.best_s) == (2e-3, 0.0, None)
    assert (conv.first_s, dense.first_s, copy.first_s) == (4e-3, 2e-3, None)
    assert run.first_s == pytest.approx(2 * 4e-3 + 2e-3)


def test_a_run_without_metrics_has_the_results_of_its_journal(folder):
    failed = (("conv_a", 4), ("copy_c", 5))
    rows = [trial(n, task, 0.0, float(n), error="wrong") for task, n in failed]
    with (folder / "trials.jsonl").open("a") as journal:
        journal.writelines(json.dumps(row) + "\n" for row in rows)
    ended = read_network_run(folder)
    (folder / "metrics.json").unlink()
    run = read_network_run(folder)
    assert [task.best_s for task in run.tasks] == [task.best_s for task in ended.tasks]
    assert [(task.trials, task.failures) for task in run.tasks] == [(3, 1), (1, 0), (1, 1)]
    assert "2 of 3 tasks, 100.0% of" in write_report(folder).read_text(encoding="utf-8")


def test_the_page_is_one_file_with_every_number(folder):
    text = write_report(folder).read_text(encoding="utf-8")
    assert "2 of 3 tasks, 100.0% of the arithmetic, were measured" in text
    assert "the sum of all their calls is 5 ms. With the first program of each it" in text
    assert "was 10 ms: 2 times as long." in text
    assert "The network takes 5 ms, measured: the median of 5 runs with 2 threads." in text
    assert "It is 4 times faster than eager." in text
    assert "These runs vary from 3.75 ms to 10 ms" in text
    assert "compile did not run: no C++ compiler &lt;g++&gt;" in text
    assert "3.75 to 10" in text
    assert "1.0e-06" in text
    for cell in ("conv_a", "60.0", "40.0", "9", "1x3x8x8 8", "cpu-avx2"):
        assert f"<td>{cell}</td>" in text, cell
    assert "tune.py network=tiny seed=7" in text
    assert text.count("<svg") == 4  # latencies, tasks, curves, seconds
    assert re.findall(r"(?:src|href)=[\"']?(?!#)", re.sub(r"xlink:href=\"#", "", text)) == []


def test_the_page_says_which_latencies_are_of_turns(folder):
    told = "The best programs of 1 task were timed again, in turns. The network has"
    assert "were timed again" not in write_report(folder).read_text(encoding="utf-8")
    path = folder / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["tasks"]["conv_a"]["finalists"] = {"trial": 2, "best_of_search": 1, "timed": 2}
    # the turns of both tasks take longer than the first timings, which were lucky
    metrics["tasks"]["conv_a"]["best_latency_s"] = 5e-3
    path.write_text(json.dumps(metrics))
    text = write_report(folder).read_text(encoding="utf-8")
    assert told in text
    assert "was 10 ms. The best programs" in " ".join(re.sub("<[^>]*>", " ", text).split())
    metrics["tasks"]["dense_b"]["finalists"] = {"trial": 2, "best_of_search": 1, "timed": 2}
    path.write_text(json.dumps(metrics))
    assert "The best programs of 2 tasks were" in write_report(folder).read_text(encoding="utf-8")


def test_without_contenders_or_trials_there_is_still_a_page(tmp_path):
    bare = fabricate(tmp_path / "bare", [])
    text = write_report(bare).read_text(encoding="utf-8")
    assert "Compared with" not in text
    assert "None of its 3 tasks was measured" in text
    assert "conv_a" in text


def test_runs_to_compare_are_in_the_curves(folder, tmp_path):
    other = fabricate(tmp_path / "rival-run", TRIALS[:2])
    text = write_report(folder, [other]).read_text(encoding="utf-8")
    assert text.count("rival-run") >= 3  # both curves and the seconds


@pytest.mark.usefixtures("no_pictures")
def test_facts_of_deploying_ratios_in_one_direction_and_long_names(folder):
    beside = json.loads((folder / "beside.json").read_text())
    beside["contenders"][1]["median_s"] = 4e-3
    (folder / "beside.json").write_text(json.dumps(beside))
    name = "strided_slice_squeeze_split_reshape_split_add_sigmoid_add_si_8d139bdd"
    for path in folder.glob("*.json*"):
        path.write_text(path.read_text().replace("conv_a", name))
    (folder / "deploy.json").write_text(json.dumps({"applied": 17, "max_abs_error": 3.25e-6}))
    text = write_report(folder).read_text(encoding="utf-8")
    assert "<td>applied</td><td>17</td>" in text
    assert "<td>max_abs_error</td><td>3.25e-06</td>" in text
    assert "It is 1.25 times slower than eager." in text
    assert f'title="{name}">strided_slice_squeeze_s…8d139bdd<' in text


@pytest.mark.usefixtures("no_pictures")
def test_a_deployed_network_that_was_timed_alone_has_its_latency(tmp_path):
    bare = fabricate(tmp_path / "bare", TRIALS)
    (bare / "deploy.json").write_text(json.dumps({"median_s": 6e-3}))
    text = write_report(bare).read_text(encoding="utf-8")
    assert "The network takes 6 ms, measured" in text
    assert "The difference to the network is 1 ms (17%): 1 tasks without a measurement" in text
    assert f"pruner deploy run={bare} adds torch eager" in text  # what it is to be compared with


def test_before_is_the_first_program_that_ran_or_what_earlier_runs_knew(folder):
    """One that failed is none; a task that only earlier runs measured is as fast as it was."""
    rows = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    rows[0] |= {"error": "wrong", "costs_s": []}
    kept = [row for row in rows if row["task"] == "conv_a"]
    (folder / "trials.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    run = read_network_run(folder)
    conv, dense, _ = run.tasks
    assert (conv.first_s, dense.first_s) == (1.5e-3, None)
    assert run.first_s == pytest.approx(2 * 1.5e-3 + 2e-3) == pytest.approx(run.estimate_s)


@pytest.mark.usefixtures("no_pictures")
def test_what_tvm_replays_is_said_where_there_is_something(folder):
    path = folder / "metrics.json"
    metrics = json.loads(path.read_text())
    for share, told in ((None, 0), (0.0, 0), (0.125, 1)):
        path.write_text(json.dumps({**metrics, "replayed_share": share}))
        text = write_report(folder).read_text(encoding="utf-8")
        assert text.count("12.5% of the arithmetic is in tasks with spaces that TVM") == told


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no tasks\.json"):
        write_report(tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_every_column_of_numbers_names_its_unit(folder):
    """Counts, ratios and shares aside, a heading ends with its unit in brackets."""
    without = {"calls", "runs", "programs tried", "of these failed", "GFLOP/s", "MFLOP a call",
               "relative error", "version", "value"}  # fmt: skip
    tables = re.findall(r"<table>.*?</table>", write_report(folder).read_text(encoding="utf-8"))
    assert len(tables) == 4  # libraries, tasks, tasks without a program, facts
    for table in tables:
        head, *rows = (
            re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)
            for row in re.findall(r"<tr>(.*?)</tr>", table)
        )
        assert rows
        for name, *cells in zip(head, *rows, strict=True):
            if name not in without and all(re.match(r"[\d.]+($| to )", c) for c in cells if c):
                assert re.search(r"\((ms|s|%)\)$", name), name


def test_the_roofline_is_arithmetic_or_memory(folder):
    """4 MFLOP at half of 8 GFLOP/s (one of two cores) are 1 ms, and 2 ms were measured."""
    (folder / "network.json").write_text(json.dumps({"target": {"num-cores": 1}}))
    rates = "peak_flops_per_s: 8.0e+9, dram_bytes_per_s: 1.0e+9, num_cores: 2"
    (folder / "config.yaml").write_text(f"platform: {{name: cpu-avx2, {rates}}}\n")
    conv, dense, copy = read_network_run(folder).tasks
    assert dense.roofline == pytest.approx(0.5)
    assert conv.roofline == pytest.approx(0.75e-3 / 1.5e-3)
    assert copy.bound_s == pytest.approx((3 * 64 + 8) * 4 / 1e9)  # no arithmetic: its bytes
    assert copy.roofline is None


@pytest.mark.usefixtures("no_pictures")
def test_the_page_names_the_described_and_the_measured_processor(folder):
    described = "platform: {name: cpu-avx2, kind: cpu, title: A Xeon}\n"
    (folder / "config.yaml").write_text(described)
    assert "description (A Xeon), arithmetic" in write_report(folder).read_text(encoding="utf-8")
    (folder / "deploy.json").write_text(json.dumps({"machine": {"processor": "An EPYC"}}))
    text = write_report(folder).read_text(encoding="utf-8")
    assert "description (A Xeon; the network ran on An EPYC, and" in text


@pytest.mark.usefixtures("no_pictures")
def test_the_variants_of_a_network_are_a_table(folder):
    ways = [
        Alternative(steps=[], tasks={"conv_a": 1}, estimate_s=2e-3),
        Alternative(steps=["winograd 1"], tasks={}, estimate_s=1e-3, error=6e-6, chosen=True),
    ]
    found = Alternatives(key="ab", region="1 products to 1x8x8x8", count=2, ways=ways)
    times = {"latencies_s": {"variants": 2e-3, "original": 3e-3}, "built": "variants"}
    VariantReport(classes=[found], left_out=["a chain"], seconds=1.0, **times).save(folder)
    text = write_report(folder).read_text(encoding="utf-8")
    assert "2 x 1 products to 1x8x8x8: winograd 1; estimate 2 ms -&gt; 1 ms" in text
    assert "2 ms with them and 3 ms without (1.5 times as long); the library is built with" in text
    assert "left out: a chain" in text
    for cell in ("winograd 1", "6.0e-06", "original"):
        assert f"<td>{cell}</td>" in text, cell


def test_the_tasks_are_those_of_the_form_that_is_built(folder):
    other = folder / OTHER
    other.mkdir()
    (other / TASKS).write_text(json.dumps(json.loads((folder / TASKS).read_text())[:1]))
    for place, variants in ((folder, {"ab": ["order 0"]}), (other, {})):
        form, source = NetworkFormat(variants=variants), NetworkSource(name="tiny")
        NetworkRequest(source=source, target={}, form=form).save(place / REQUEST)
    for built, count in (("variants", 3), ("original", 1)):
        VariantReport(built=built).save(folder)
        assert len(read_network_run(folder).tasks) == count
