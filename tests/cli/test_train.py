import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from pruner.models.checkpoint.tensors import load_tensors
from tests.cli import toy_records
from tests.commands import ran
from tests.models import zoo
from tests.models.synthetic import exactly
from tests.paths import DATASETS, REPOSITORY

SHOWN = ("top1", "top5", "pairwise_accuracy")


def weights(checkpoint):
    return load_tensors(Path(checkpoint))["state"]["network"]


def test_the_last_line_says_what_the_contract_promises(train, tmp_path):
    result, err = train().done
    promised = [
        "run_dir",
        "checkpoint",
        "top1",
        "top5",
        "pairwise_accuracy",
        "num_tasks",
        "num_programs",
        "seconds",
    ]
    assert [name for name in promised if name not in result] == []
    folder = tmp_path / result["run_dir"]
    assert {p.name for p in folder.iterdir()} >= {"config.yaml", "metrics.json", "best.safetensors"}
    assert json.loads((folder / "metrics.json").read_text()) == result
    first = (folder / "config.yaml").read_text().partition("\n")[0]
    assert first.startswith("# train.py ")
    assert "trainer.max_epochs=2" in first  # as it was asked for
    assert result["num_programs"] == 15 * result["num_tasks"]  # the failed record is not counted
    assert result["data"]["num_records"] - result["data"]["num_measured"] == 6
    assert "epoch 2/2" in err


def test_an_epoch_without_validation_shows_none(train):
    _, _, err = train("trainer.max_epochs=3", "+trainer.check_val_every_n_epoch=2")
    lines = [line for line in err.splitlines() if re.search(r" epoch \d", line)]
    assert ["loss" in line for line in lines] == [True, True, True]
    for word in ("top1", "pairwise"):
        assert [word in line for line in lines] == [False, True, False]


def test_a_resumed_run_equals_an_uninterrupted_one(train, command):
    small = ["model=pacm", "model.width=32", "model.dataflow_hidden=16", "model.dataflow_width=32"]
    _, whole, _ = train(*small, "trainer.max_epochs=4")
    _, stopped, _ = train(*small, "trainer.max_epochs=4", "stop_after=1")
    assert not stopped["finished"]
    resumed, _ = command("train", f"resume={stopped['run_dir']}").done
    exactly(weights(whole["checkpoint"]), weights(resumed["checkpoint"]))
    for name in ("top1", "top5", "pairwise_accuracy", "ndcg"):
        assert whole[name] == resumed[name]


def test_more_epochs_are_of_all_seeds_of_an_unfinished_run(train, command, tmp_path):
    _, first, _ = train("model=tensetmlp", "seeds=[0,1]")
    run = tmp_path / first["run_dir"]
    for folder in (run, run / "seed-1"):  # as if the second seed had been interrupted
        (folder / "metrics.json").unlink()
    again = f"resume={first['run_dir']}"
    err = command("train", again, "trainer.max_epochs=1").refusal
    assert "a fit of 2 epochs is finished; give trainer.max_epochs=2 or more" in err
    result, _ = command("train", again, "trainer.max_epochs=4", "stop_after=3").done
    assert not result["finished"]
    result, _ = command("train", again).done  # to the number of epochs that was given before
    assert result["epochs"] == 4
    for seed in (0, 1):
        assert json.loads((run / f"seed-{seed}" / "metrics.json").read_text())["epochs"] == 4
    assert (run / "seed-0" / "metrics-2-epochs.json").is_file()


def test_finished_trees_are_not_grown_again(train, command):
    result, _ = train("model=xgboost").done
    assert "this run is finished" in command("train", f"resume={result['run_dir']}").refusal


@pytest.mark.slow
def test_with_a_constant_rate_more_epochs_go_on_exactly(train, command):
    _, whole, _ = train("schedule=constant", "trainer.max_epochs=4")
    _, short, _ = train("schedule=constant", "trainer.max_epochs=2")
    again = command("train", f"resume={short['run_dir']}")
    assert again[0] == 2
    assert "a larger trainer.max_epochs=N continues it" in again[2]
    metrics = Path(short["run_dir"]) / "metrics.json"
    whole_metrics = metrics.read_text()
    metrics.write_text('{"epochs": "many"}')
    code, _, err = command("train", f"resume={short['run_dir']}", "trainer.max_epochs=4")
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"{metrics}: damaged" in err
    metrics.write_text(whole_metrics)
    _, longer, _ = command("train", f"resume={short['run_dir']}", "trainer.max_epochs=4")
    exactly(weights(whole["checkpoint"]), weights(longer["checkpoint"]))


def test_seeds_in_two_processes_are_those_of_one(train):
    (_, one, _), (_, two, _) = (
        train("seeds=[0,1]", "model=tensetmlp", f"num_workers={number}") for number in (1, 2)
    )
    for found in (one, two):
        for part in found["parts"].values():
            del part["fit_seconds"]
    assert one["parts"] == two["parts"]
    assert one["spread"] == two["spread"]


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("num_threads=2", "leave num_threads= and stop_after= out"),
        ("stop_after=1", "leave num_threads= and stop_after= out"),
        ("+trainer.max_steps=1", "trainer.max_steps="),
        ("trainer.devices=2", "trainer.devices=1"),
    ],
)
def test_several_processes_have_one_thread_and_device_each(train, option, says):
    err = train("seeds=[0,1]", "num_workers=2", option).refusal
    assert says in err
    assert err.endswith("or give num_workers=1\n")


def test_one_thread_unless_told_otherwise(command, toy_root):
    before = torch.get_num_threads()
    arguments = ("train", f"data.root={toy_root}", "platform=v100", "trainer.accelerator=cpu")
    arguments += ("trainer.max_epochs=1", "model=tensetmlp")
    try:
        torch.set_num_threads(2)
        assert command(*arguments, "num_threads=null")[1]["num_threads"] == 2
        _, result, _ = command(*arguments)
        assert (result["num_threads"], torch.get_num_threads()) == (1, 2)  # and given back
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
def test_the_environment_s_threads_do_not_decide_the_result(tmp_path):
    options = [f"data.root={REPOSITORY}/datasets/bundled", "data.platform=cpu-avx2"]
    options += ["split=bundled", "trainer.max_epochs=1", "model=tensetmlp"]
    options += ["trainer.accelerator=cpu"]
    found = []
    for threads in ("1", "2"):
        words = ("train.py", *options, f"run_id=with-{threads}")
        found.append(ran(*words, cwd=tmp_path, OMP_NUM_THREADS=threads)[0])
    exactly(*(weights(tmp_path / result["checkpoint"]) for result in found))
    for name in ("top1", "top5", "pairwise_accuracy", "ndcg"):
        assert found[0][name] == found[1][name]


# Other tests here train pacm, pacm_narrow and tlp; of two models that read the draft, pacm_residual
# is fast; pacm_official, mtl_tlp and attention are trained by this command in slow tests alone.
OTHER_SIZES = ("pacm", "pacm_narrow", "pacm_draft", "pacm_official", "mtl_tlp", "attention", "tlp")
MODELS = [
    pytest.param(name, marks=pytest.mark.slow if name in OTHER_SIZES else ())
    for name in zoo.choices()
]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_trains_and_is_evaluated(train, command, toy_root, model):
    result, _ = train(f"model={model}").done
    evaluated = command(
        "evaluate", f"checkpoint={result['checkpoint']}", f"data.root={toy_root}", "platform=v100"
    )
    assert evaluated[0] == 0, evaluated[2]
    assert evaluated[1]["top1"] == pytest.approx(result["top1"])
    assert evaluated[1]["num_tasks"] == result["num_tasks"]


def test_every_run_says_which_task_is_bad(trained):
    result, err = trained("model=tensetmlp")
    rows = tasks_of(Path(result["run_dir"]))
    assert len(rows) == result["num_tasks"] < 5
    best, chosen, random = (
        [float(row[f"{name}_latency_s"]) for row in rows] for name in ("best", "chosen", "random")
    )
    assert sum(best) / sum(chosen) == pytest.approx(result["top1"])  # weights are 1
    assert all(b <= c for b, c in zip(best, chosen, strict=True))
    assert all(b < r for b, r in zip(best, random, strict=True))
    assert "warning: judged on" in err
    worst = min(rows, key=lambda row: float(row["top1"]))["task"]
    table = err[err.index("programs   top1 random") :].splitlines()
    assert table[1].startswith(worst)


def test_a_split_by_platform_says_what_to_type(train):
    err = train("split=by_platform").refusal
    assert "data.platform=all, and name one in split.held_out=[...]" in err.splitlines()[-1]
    err = train("split=by_platform", "data.platform=all").refusal
    assert "such as split.held_out=[v100]" in err.splitlines()[-1]
    choice = ("split=by_platform", "data.platform=all", "split.held_out=[v100]")
    result, _ = train(*choice, "model=tensetmlp", "split.workloads=all").done
    assert result["num_tasks"] == 6


def test_records_of_another_kind_of_device_need_a_word(command, tmp_path):
    root = toy_records.write(tmp_path / "cpus", platforms=("cpu-avx2", "cpu-sse4"))
    options = ("train", f"data.root={root}", "platform=orin", "model=tensetmlp", *toy_records.SMALL)
    err = command(*options).refusal
    [line] = err.strip().splitlines()
    assert "has no records of orin, only of cpu-avx2, cpu-sse4, which are no gpus" in line
    assert "leave_out=all" in line
    assert len(line.removeprefix(f"error: {root}").split()) < 35
    result, err = command(*options, "leave_out=none").done
    assert "another kind of device" in err
    assert result["validation"] == "tasks of all platforms"
    _, err = command(*options, "data.platform=all").done
    assert "another kind of device than platform=orin (gpu), which only names the run" in err
    err = command(*options, "data.platform=all", "leave_out=all").refusal
    assert "leave_out=all: it needs a platform= without records, and no data.platform=" in err


def test_a_model_that_reads_dataflow_says_where_there_is_none(train, monkeypatch):
    told = "no program of these records has a dataflow pattern"
    assert told not in train("model=pacm_narrow")[2]

    def without(*arguments, **options):
        found = toy_records.featurize_records(*arguments, **options)
        return replace(found, dataflow=np.zeros_like(found.dataflow))

    monkeypatch.setattr("pruner.features.featurize_records", without)
    assert told in train("model=pacm_narrow", "data.cache=null")[2]
    assert told not in train("model=tensetmlp", "data.cache=null")[2]


def test_without_records_the_other_platforms_teach(command, toy_root):
    result, err = command(
        "train",
        f"data.root={toy_root}",
        "platform=orin",
        "split=by_task",
        "model=tensetmlp",
        *toy_records.SMALL,
    ).done
    assert err.count("no records of orin") == 1
    assert result["validation"] == "leave one platform out"
    assert set(result["parts"]) == {"without-k80", "without-v100"}
    seen = load_tensors(Path(result["checkpoint"]))["seen_tasks"]
    assert set(seen) == {"k80", "v100"}
    left = load_tensors(Path(f"{result['run_dir']}/without-k80/best.safetensors"))["seen_tasks"]
    assert set(left) == {"v100"}
    judged = {name: len(tasks_of(Path(result["run_dir"]) / name)) for name in result["parts"]}
    assert result["num_tasks"] == sum(judged.values())
    first = next(iter(judged))
    assert f"tasks of {first}, part 1 of 2: each folder has its own" in err
    assert f"tested on each of them, left out of a training: {result['num_tasks']} tasks" in err


def tasks_of(folder):
    with (folder / "tasks.csv").open() as handle:
        return list(csv.DictReader(handle))


def test_the_last_screen_says_what_was_learned_and_what_to_do_with_it(train):
    _, result, err = train("model=tlp")
    *_, learned, head, run, chance, top1, checkpoint, following = err.splitlines()
    judged, programs = result["num_tasks"], result["num_programs"]
    assert learned.startswith("trained on ")
    assert learned.endswith(f"tested on {judged} others, {programs} programs")
    words = ("trained on ", "chosen on ")
    taught, chose = (int(learned.split(word)[1].split()[0].rstrip(";")) for word in words)
    assert taught + chose + judged == 6
    assert head.split() == [*SHOWN]
    assert run.split() == ["run", *(f"{result[name]:.4g}" for name in SHOWN)]
    assert chance.split() == ["chance", *(f"{result['random'][name]:.4g}" for name in SHOWN)]
    assert top1.startswith("top1: ")
    assert checkpoint == f"checkpoint: {result['checkpoint']}"
    assert following == "next: python evaluate.py checkpoint=last"  # tune.py does not take it
    trees = train("model=lightgbm", "+model.min_data_in_leaf=1", "outputs=elsewhere")
    run_dir = trees[1]["run_dir"]
    assert f" checkpoint={run_dir} adaptation=none  # " in trees[2].splitlines()[-1]


@pytest.mark.parametrize(
    ("logger", "pattern"),
    [
        pytest.param("csv", "start-0/metrics.csv", marks=pytest.mark.slow),
        ("tensorboard", "start-0/events.out.tfevents.*"),
    ],
)
def test_every_logger_writes_into_the_part_folder_offline(train, tmp_path, logger, pattern):
    pytest.importorskip({"csv": "csv"}.get(logger, logger))
    result, _ = train(f"logger={logger}", "seeds=[0,1]", "model=tensetmlp").done
    for seed in (0, 1):
        assert len(list((tmp_path / result["run_dir"] / f"seed-{seed}").glob(pattern))) == 1


def test_a_run_id_is_never_overwritten(train):
    assert train("model=tensetmlp", "run_id=mine")[0] == 0
    assert "never overwritten" in train("model=tensetmlp", "run_id=mine").refusal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["platform=nowhere"], "platform=nowhere is unknown; known: a100"),
        (["data.root=/nowhere"], "no such folder"),
        (["data.platform=t4"], "there are records for: k80, v100"),
        (["resume=/nowhere"], "no config.yaml"),
        (["resume="], "resume=: it must be a path"),  # of a variable without a value
        (["seed=1", "seeds=[0,1]"], "seed=1: seeds= gives the seed of each fit; leave one out"),
        (["monitor=valid/accuracy"], "validation logs valid/"),
        (["min_programs=1000"], "lower min_programs"),
        (["split=by_operator", "split.held_out=[softmax]"], "operators here: matmul"),
        (["num_threads=0"], "num_threads=0: it must be a whole number from 1 to 1024, or null"),
        (["num_threads=-1"], "num_threads=-1: it must be a whole number from 1 to 1024"),
        (["num_threads=1.5"], "num_threads=1.5: it must be"),
        (["num_threads=many"], "num_threads=many: it must be"),
        (["model.branch_dropout=1"], "below 1"),
        (["schedule.soup_epochs=0"], "1 or more"),
        (["train_failures=2"], "true or false"),
        (["model.draft_width=0"], "a whole number from 1"),
    ],
)
def test_mistakes_are_one_line_and_code_2(train, arguments, message):
    assert message in train(*arguments).refusal


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seeds=[1,1]"], "each once"),
        (["loss.lists=nonsense"], "loss.lists: got 'nonsense'"),
        (["batches.tasks=0"], "batches: got tasks=0"),
        (["trainer.accelerator=gpu"], "trainer: "),
        (["trainer.accelerator=abacus"], "abacus"),
    ],
)
def test_a_wrong_choice_is_told_before_records_are_read(train, tmp_path, arguments, message):
    err = train(*arguments).refusal
    [line] = err.strip().splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not list(tmp_path.glob("outputs/train/*"))


def test_resume_refuses_another_computation_and_a_damaged_last_checkpoint(train, command):
    _, stopped, _ = train("model=tensetmlp", "stop_after=1")
    again = f"resume={stopped['run_dir']}"
    assert "leave out loss=mse" in command("train", again, "loss=mse").refusal
    words = "experiment=paper_training"
    assert f"leave out {words}" in command("train", again, words).refusal
    last = Path(stopped["run_dir"]) / "last.safetensors"
    last.write_bytes(last.read_bytes()[:1000])
    err = command("train", f"resume={stopped['run_dir']}").refusal
    assert "last.safetensors is damaged; delete it" in err
    last.unlink()
    assert command("train", f"resume={stopped['run_dir']}")[0] == 0


def test_a_folder_without_usable_records_is_one_line(command, tmp_path):
    folder = tmp_path / "bad" / "measure_records" / "v100"
    folder.mkdir(parents=True)
    (folder / "matmul_1_2_3.json").write_text("not json\n{}\n")
    err = command("train", f"data.root={tmp_path / 'bad'}", "platform=v100").refusal
    assert "no usable record" in err


def test_a_checkpoint_of_other_features_is_refused(trained, command, toy_root, monkeypatch):
    result, _ = trained("model=tensetmlp")
    monkeypatch.setattr("pruner.features.FEATURE_SET_VERSION", "toy-2")
    err = command("evaluate", f"checkpoint={result['checkpoint']}", f"data.root={toy_root}").refusal
    assert "made for feature-set version 'toy-1'" in err


OPTIONS = (
    f"data.root={DATASETS / 'bundled'}",
    "platform=cpu-avx512",
    "split=bundled",
    "trainer.max_epochs=2",
    "trainer.accelerator=cpu",
    "optimizer=sgd",  # Adam makes a rounding of nothing a step of full length
    "batches.per_task=32",
    "batches.programs=16",
    "batches.window=4",
    "keep=last",
)


def learned(folder, *more):
    result, _ = ran("train.py", *OPTIONS, f"outputs={folder}", *more, cwd=folder)
    return load_tensors(folder / result["checkpoint"])["state"]["network"]


@pytest.mark.slow
def test_streams_and_two_processes_learn_what_features_and_one_do(tmp_path):
    wanted = learned(tmp_path, "store=features")
    found = learned(tmp_path, "store=stream")
    exactly(found, wanted)
    shared = learned(tmp_path, "store=stream", "trainer=ddp")
    for name, value in wanted.items():
        torch.testing.assert_close(shared[name], value, rtol=1e-3, atol=1e-5, msg=name)


def test_the_analyzers_inputs_are_used_in_every_command(train, command, toy_root, tmp_path):
    trained, _ = train("model=pacm_narrow", "model.residual=true", "model.use_draft=true").done
    options = (f"checkpoint={trained['run_dir']}", f"data.root={toy_root}", "platform=v100")
    judged, _ = command("evaluate", *options).done
    assert judged["pairwise_accuracy"] == pytest.approx(trained["pairwise_accuracy"])
    assert command("predict", *options, "out=s.csv").done
    with (tmp_path / "s.csv").open() as file:
        assert all(row["score"] for row in csv.DictReader(file))
    again, _ = train(f"checkpoint={trained['run_dir']}").done  # goes on, with what it reads
    assert again["went_on_from"]


def test_programs_that_failed_are_learnt_from_and_judge_nobody(train):
    _, plain, _ = train("model=tensetmlp")
    more, _ = train("model=tensetmlp", "train_failures=true", "loss=top_tenth").done
    assert more["num_programs"] == plain["num_programs"]
    assert more["data"]["num_measured"] == plain["data"]["num_measured"]


@pytest.mark.parametrize("schedule", ["averaged", pytest.param("soup", marks=pytest.mark.slow)])
def test_averaged_weights_are_one_model(train, schedule):
    result, _ = train("model=tensetmlp", f"schedule={schedule}", "schedule.soup_epochs=1").done
    assert result["finished"]
    assert result["checkpoint"].endswith("best.safetensors")


@pytest.mark.slow
def test_a_table_has_variants_that_read_other_things(command, toy_root):
    result, _ = command(
        "results_table",
        f"data.root={toy_root}",
        "platforms=[v100]",
        "models=[residual,failed,random]",
        "seeds=[0]",
        "+variants.residual=['model=pacm_narrow','+model.residual=true']",
        "+variants.failed=['model=tensetmlp','train_failures=true']",
        "overrides=['trainer.max_epochs=1','trainer.accelerator=cpu','num_threads=1']",
    ).done
    assert set(result["mean"]) == {"v100/residual", "v100/failed", "v100/random"}
