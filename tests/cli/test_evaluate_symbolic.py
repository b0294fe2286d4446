"""``evaluate.py model=symbolic`` against scores and metrics taken directly."""

import json
from pathlib import Path

import numpy as np
import pytest

from pruner.models.analyzer.analyzer import load_analyzer
from pruner.models.analyzer.constants import GpuRates, load_constants
from pruner.models.judging import metrics
from pruner.models.judging.metrics import ScoredTask
from tests.features.matmul_skeleton import matmul_dag
from tests.matmul_logs import record, steps_of, write
from tests.paths import CONF

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
    result, err = command(*common).done
    assert result["num_programs"] == result["data"]["num_measured"] > 50
    assert result["data"]["num_without_score"] == 0
    assert result["pairwise_accuracy"] > 0.6
    assert "use model.form=hardware" in command(*common, "model.form=official").refusal
