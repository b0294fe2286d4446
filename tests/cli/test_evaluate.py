import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.constants import GpuRates, load_constants
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from tests.features.matmul_skeleton import matmul_dag
from tests.matmul_logs import record, steps_of, write
from tests.paths import CONF


def test_a_random_ranker_needs_no_checkpoint(command, toy_root):
    result, _ = command("evaluate", "model=random", "platform=v100", f"data.root={toy_root}").done
    assert result["num_tasks"] == 6
    assert result["num_programs"] == 6 * 15
    assert {"best1_at_512", "best1_at_eighth", "best1_at_2pct"} <= result["best_k"].keys()
    assert result["best_k"].keys() == result["random"]["best_k"].keys()
    assert 0 < result["random"]["top1"] < result["random"]["top5"] <= 1
    for name in ("top1", "top5", "pairwise_accuracy", "seconds"):
        assert name in result


def test_a_platform_that_is_named_twice_is_read_once(command, toy_root):
    words = ("model=random", "data.platform=[v100,v100]", f"data.root={toy_root}")
    assert command("evaluate", *words).done[0]["num_tasks"] == 6


def test_all_tasks_include_those_of_the_training(command, trained, toy_root):
    given, _ = trained("model=tensetmlp")
    options = [f"checkpoint={given['run_dir']}", f"data.root={toy_root}", "platform=v100"]
    unseen, everything = (
        command("evaluate", *options)[1],
        command("evaluate", *options, "tasks=all")[1],
    )
    assert unseen["num_tasks"] == given["num_tasks"] < everything["num_tasks"] == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give either checkpoint=FILE"),
        (["model=random", "checkpoint=x"], "give either"),
        (["checkpoint=nowhere.pt"], "does not exist; train one with train.py"),
        (["model=pacm"], "train it with train.py"),
        (["model=random", "platform=orin"], "no records for platform=orin"),
        (["model=random", "tasks=some"], "known: unseen, all"),
        (["model=symbolic", "checkpoint=x"], "give either"),
        (["model=symbolic", "platform=t4"], "no records for platform=t4"),
        (["model=symbolic", "model.form=best"], "known: official, paper, hardware"),
        (["model=symbolic", "model.without=x"], "known: c, m"),
        (["model=symbolic", "model.form=paper", "model.calibrate=9"], "use model.form=hardware"),
        (["model=symbolic", "platform=v100", "platform.num_sms=0"], "num_sms must be a positive"),
    ],
)
def test_mistakes_are_one_line_and_code_2(command, toy_root, arguments, message):
    assert message in command("evaluate", f"data.root={toy_root}", *arguments).refusal


def test_a_folder_of_several_fits_asks_for_one(command, toy_root, tmp_path):
    for seed in (0, 1):
        (tmp_path / "run" / f"seed-{seed}").mkdir(parents=True)
        (tmp_path / "run" / f"seed-{seed}" / "best.pt").touch()
    err = command("evaluate", f"data.root={toy_root}", f"checkpoint={tmp_path / 'run'}").refusal
    assert "holds 2 models" in err
    assert "seed-0" in err


def test_every_record_line_has_a_row(command, trained, toy_root, tmp_path):
    data = (f"data.root={toy_root}", "platform=v100")
    checkpoint = f"checkpoint={trained('model=tensetmlp')[0]['run_dir']}"
    result, _ = command("predict", checkpoint, *data, "out=s.csv").done
    table = pd.read_csv(tmp_path / "s.csv")
    columns = ["platform", "task", "line", "score", "rank", "latency_s"]
    assert list(table) == [*columns, "low_s", "predicted_s", "high_s"]
    assert table.eval("0 < low_s <= predicted_s <= high_s").all()
    assert len(table) == result["num_programs"] == 6 * 16  # the failed ones, too
    assert table.groupby("task")["rank"].min().eq(1).all()
    assert command("predict", checkpoint, *data, "seconds=false", "out=t.csv")[0] == 0
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "t.csv"), table[columns])
    assert command("predict", *data)[0] == 2  # no checkpoint
    assert "models.own=a.B: " in command("predict", checkpoint, *data, "models.own=[a.B]").refusal
    err = command("predict", checkpoint, *data, f"out={tmp_path}").refusal
    assert f"out={tmp_path}: a folder; name a file in it" in err
    for path in (toy_root / "measure_records/v100").iterdir():  # now nothing is measured
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        lines = [{**line, "r": [[1e10], 2, *line["r"][2:]]} for line in lines]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert command("predict", checkpoint, *data, "seconds=false", "out=u.csv")[0] == 0
    scores = pd.read_csv(tmp_path / "u.csv")
    assert scores.latency_s.isna().all()
    pd.testing.assert_series_equal(scores.score, table.score)


SIZES = [(256, 256, 256), (512, 256, 128), (128, 512, 512), (512, 512, 512)]  # m, k, n
FOLDER = "root/measure_records/v100"


@pytest.fixture
def measured_root(tmp_path):
    """Some matrix products on a V100 whose latencies are the analyzer's with noise."""
    rng, analyzer = np.random.default_rng(0), load_analyzer(CONF, "v100")
    for size in SIZES:
        steps = steps_of(size, rng, 60)
        seconds = np.exp(rng.normal(0, 0.2, 60) - analyzer.score_steps(matmul_dag(*size), steps))
        write(tmp_path / FOLDER, size, map(record, [size] * 60, steps, seconds))
    return tmp_path / "root"


def direct(root, **options):
    tasks = []
    for size in SIZES:
        path = root.parent / FOLDER / f"matmul_{'_'.join(map(str, size))}.json"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [record["i"][1][1] for record in records]
        latency_s = np.array([record["r"][0][0] for record in records])
        score = load_analyzer(CONF, "v100", **options).score_steps(matmul_dag(*size), steps)
        tasks.append(ScoredTask(name=path.name, latency_s=latency_s, score=score))
    return tasks


@pytest.mark.parametrize(
    "options",
    [{}, {"form": "paper"}, {"without": "m"}, {"form": "official", "without": "registers"},
     *(pytest.param(one, marks=pytest.mark.slow) for one in
       ({"without": "spill_m"}, {"form": "official"}, {"form": "paper", "without": "wave_c"}))],
)  # fmt: skip
def test_the_draft_is_judged_like_a_checkpoint(command, measured_root, options):
    arguments = [f"model.{name}={value}" for name, value in options.items()]
    result, _ = command(
        "evaluate", "model=symbolic", "platform=v100", f"data.root={measured_root}", *arguments
    ).done
    tasks = direct(measured_root, **options)
    assert result["num_tasks"] == len(SIZES)
    assert result["num_programs"] == sum(task.num_programs for task in tasks)
    assert result["top1"] == pytest.approx(metrics.top_k(tasks, 1))
    assert result["pairwise_accuracy"] == pytest.approx(metrics.pairwise_accuracy(tasks))
    assert {"best1_at_512", "best1_at_eighth", "best1_at_2pct"} <= result["best_k"].keys()
    assert result["best_k"].keys() == result["random"]["best_k"].keys()
    assert result["data"]["num_without_score"] == 0
    assert Path(result["run_dir"], "metrics.json").is_file()
    if not options:  # the record folder names the device
        everywhere = command("evaluate", "model=symbolic", f"data.root={measured_root}")[1]
        assert everywhere["top1"] == result["top1"]


def test_a_term_of_another_form_is_refused_with_the_known_ones(command, measured_root):
    common = ["evaluate", "platform=v100", f"data.root={measured_root}"]
    for experiment, known in (("paper_draft", "shared_m"), ("paper_draft_release", "wave")):
        err = command(*common, f"experiment={experiment}", "model.without=spill_m").refusal
        assert "model.without=spill_m is unknown" in err
        assert known in err


def test_the_released_form_and_constants_of_the_command_line(command, measured_root):
    common = ["evaluate", "model=symbolic", "platform=v100", f"data.root={measured_root}"]
    plain, official, slow = (
        command(*common, *more)[1] for more in ([], ["model.form=official"], ["platform.num_sms=1"])
    )
    assert official["num_programs"] == plain["num_programs"]
    assert len({r["pairwise_accuracy"] for r in (plain, official, slow)}) == 3


def test_calibration_fits_on_the_other_half_and_saves_a_platform_file(command, measured_root):
    result, _ = command(
        "evaluate", "model=symbolic", "platform=v100", f"data.root={measured_root}",
        "model.calibrate=60",
    ).done  # fmt: skip
    fits = result["data"]["calibration"]["v100"]
    assert fits["whole"]["error_after"] <= fits["whole"]["error_before"]
    saved = Path(fits["saved"])
    fitted = load_constants(saved.parent, "v100", GpuRates)
    assert fitted.rates != GpuRates()
    assert "measured programs of" in fitted.origin
    assert "matmul_" in fitted.origin


def test_tasks_of_unknown_operators_are_told_and_counted(command, measured_root):
    folder = measured_root / "measure_records" / "v100"
    text = next(iter(sorted(folder.iterdir()))).read_text()
    (folder / "odd.json").write_text(text.replace("matmul_layer", "strange_layer"))
    result, err = command(
        "evaluate", "model=symbolic", "platform=v100", f"data.root={measured_root}"
    ).done
    assert result["num_tasks"] == len(SIZES)
    assert sum(result["data"]["left_out"].values()) == result["data"]["num_left_out"] > 0
    assert "odd.json left out" in err


def test_records_of_another_gpu_are_told_and_counted(command, measured_root):
    folder = measured_root / "measure_records" / "v100"
    path = sorted(folder.iterdir())[0]
    path.write_text(path.read_text().replace('"cuda"', '"cuda -arch=sm_75"'))
    common = ["evaluate", "model=symbolic", f"data.root={measured_root}"]
    result, err = command(*common, "platform=v100").done
    assert result["num_tasks"] == len(SIZES) - 1
    assert result["data"]["left_out"]["another-gpu"] > 0
    assert "sm_75" in err
    chosen = command(*common, "platform=t4", "data.platform=v100")[1]
    assert chosen["num_tasks"] == len(SIZES)  # a folder that the user names is judged whole


def test_cpu_targets_are_judged_and_have_no_released_form(command, tmp_path):
    name = "cpu-avx2/matmul_128_128_128.json.gz"
    recorded = CONF.parent / "datasets" / "ansor" / "measure_records" / name
    copy = tmp_path / "root" / "measure_records" / name
    copy.parent.mkdir(parents=True)
    copy.write_bytes(recorded.read_bytes())
    common = ["evaluate", "model=symbolic", "platform=cpu-avx2", f"data.root={tmp_path / 'root'}"]
    result, _ = command(*common).done
    assert result["num_programs"] == result["data"]["num_measured"] > 50
    assert result["data"]["num_without_score"] == 0
    assert result["pairwise_accuracy"] > 0.6
    assert "use model.form=hardware" in command(*common, "model.form=official").refusal
