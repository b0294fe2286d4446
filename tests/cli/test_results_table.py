import csv
import json
from itertools import product

import pandas
import pytest
from omegaconf import OmegaConf

from pruner.cli.shared.output import as_table
from pruner.data import networks
from pruner.data.tenset.task_pickle import PickledTask
from pruner.models.checkpoint.checkpoint import git_commit
from pruner.models.checkpoint.tensors import load_tensors
from pruner.study.model_table import markdown
from tests.cli import toy_records

FAST = "overrides=['trainer.max_epochs=1','trainer.accelerator=cpu','num_threads=1']"


@pytest.fixture
def table(command, toy_root):
    def run(*arguments):
        return command("results_table", f"data.root={toy_root}", "platforms=v100", FAST, *arguments)

    return run


def test_one_row_for_each_model_and_seed(table, tmp_path):
    result, _ = table("models=[tensetmlp,xgboost,random]", "seeds=[0,1]").done
    assert result["results"] == f"{result['run_dir']}/results.csv"
    with (tmp_path / result["results"]).open() as handle:
        rows = list(csv.DictReader(handle))
    assert [(row["model"], row["seed"]) for row in rows] == [
        (model, seed) for seed in "01" for model in ("tensetmlp", "xgboost", "random")
    ]
    assert result["rows"] == 6
    mean = (float(rows[0]["top1"]) + float(rows[3]["top1"])) / 2
    assert result["mean"]["v100/tensetmlp"]["top1"] == pytest.approx(mean, abs=1e-6)


def test_a_resumed_table_repeats_no_fit(table, command, tmp_path):
    _, first, _ = table("models=[tensetmlp]", "seeds=[0]")
    (fit,) = (tmp_path / first["run_dir"]).rglob("seed-0/metrics.json")
    known = json.loads(fit.read_text())
    assert known["commit"] == git_commit()
    fit.write_text(json.dumps(known | {"commit": "earlier"}))
    again, err = command("results_table", f"resume={first['run_dir']}").done
    assert "epoch" not in err
    assert again["mean"] == first["mean"]
    assert "earlier" in (tmp_path / again["results"]).read_text()


def test_two_processes_make_the_same_table(table, tmp_path):
    choices = ("models=[random,xgboost]", "seeds=[0,1]")
    tables = []
    for workers in (1, 2):
        result, _ = table(*choices, f"num_workers={workers}", f"out=with-{workers}").done
        tables.append(pandas.read_csv(result["results"]))
    times = ["fit_seconds", "train_programs_per_second", "commit"]
    pandas.testing.assert_frame_equal(*(found.drop(columns=times) for found in tables))


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("loss=nothing", "loss=nothing is unknown; known: "),
        ("min_programs=99", "no result; resume="),
    ],
)
def test_a_fit_that_fails_is_told(table, option, says):
    models = "models=[lightgbm,xgboost]"
    code, _, err = table(models, "num_workers=2", "seeds=[0]", f"overrides=[{option!r}]")
    assert (code, says in err, "Traceback" in err) == (2, True, False), err


@pytest.mark.slow
def test_rows_that_are_there_stay_and_are_not_made_again(table, tmp_path):
    first, _ = table("models=[tensetmlp,random]", "seeds=[0]", "out=kept").done
    path = tmp_path / first["results"]
    before = path.read_text().splitlines()
    changed = before[1].replace("0.", "9.", 1)  # whatever the table says
    path.write_text("\n".join([before[0], changed, before[2], ""]))
    more = ("models=[tensetmlp,random]", "seeds=[0,1]", "out=kept", "keep_rows=true")
    second, _ = table(*more).done
    after = path.read_text().splitlines()
    assert after[:3] == [before[0], changed, before[2]]
    assert [line.split(",")[1:3] for line in after[3:]] == [["tensetmlp", "1"], ["random", "1"]]
    assert second["rows"] == 4


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("split=within_task", "have split={'name': 'by_task', 'seed': 0}, not {'name': 'within"),
        ("resplit=false", "have resplit=True, not False"),
        ("overrides=['train_pick=tasks']", "have overrides=[], not ['train_pick=tasks']"),
        ("data.duplicates=keep", "have data.duplicates=drop, not keep"),
        ("data.root=DIR", "have data.root="),
        ("out=null", "keep_rows=true: add out="),
    ],
)
def test_rows_made_otherwise_are_not_taken_for_these(command, toy_root, tmp_path, option, says):
    options = (f"data.root={toy_root}", "platforms=[v100]", "models=[random]", "seeds=[0]")
    assert command("results_table", *options, "out=kept")[0] == 0
    before = (tmp_path / "kept/results.csv").read_text()
    option = option.replace("DIR", f"{toy_root}/.")
    err = command("results_table", *options, "out=kept", "keep_rows=true", option).refusal
    assert says in err
    assert len(err.splitlines()) == 1
    assert (tmp_path / "kept/results.csv").read_text() == before


def test_a_table_with_other_columns_is_one_line(table, tmp_path):
    (tmp_path / "results.csv").write_text("platform,model,seed\nv100,random,0\n")
    err = table("models=[random]", "seeds=[0]", "out=.", "keep_rows=true").refusal
    assert err.startswith("error: results.csv: the table lacks, or only it has, best_epoch, ")


def test_a_file_in_the_place_of_the_table_is_told_before_the_fits(table, tmp_path):
    (tmp_path / "kept").touch()
    assert "kept: File exists" in table("models=[tensetmlp]", "seeds=[0]", "out=kept").refusal
    assert not (tmp_path / "outputs").exists()


def test_a_checkpoint_is_judged_on_tasks_that_it_has_not_seen(table, trained):
    given, _ = trained("model=tensetmlp", "split=by_task")
    own = ("models=random", f"+checkpoints.own={given['checkpoint']}")
    result, _ = table(*own, "seeds=[0]").done
    assert result["mean"]["v100/own"]["top1"] == pytest.approx(given["top1"])
    assert table(*own, "seeds=[0,1]", "resplit=false")[1]["rows"] == 4
    err = table(*own, "seeds=[0,1]", "models=[tensetmlp]").refusal
    assert "error: checkpoints.own: it has seen the work of " in err
    assert "test tasks (seed 1); give resplit=false" in err
    assert "epoch" not in err  # before the fits


@pytest.mark.parametrize("model", ["random", "ceiling"])
def test_references_leave_out_small_tasks_too(table, model):
    err = table(f"models=[{model}]", "seeds=[0]", "overrides='min_programs=99'").refusal
    assert "no test task has 99 programs" in err


def test_the_split_is_a_choice_like_that_of_train(table):
    result, _ = table("models=[random]", "seeds=[0]", "split=within_task").done
    every = pandas.read_csv(result["results"])
    assert list(every.split) == ["within_task"]
    _, result, _ = table("models=[random]", "seeds=[0]")
    assert pandas.read_csv(result["results"]).num_tasks[0] < every.num_tasks[0]


@pytest.fixture
def network(toy_root, monkeypatch):
    """Beside the toy records a network that calls one of their tasks three times, another once."""
    path = toy_root / "network_info" / "((net,[(1,3)]),cuda).task.pkl"
    path.parent.mkdir()
    path.touch()
    calls = {shape: 3 - 2 * number for number, shape in enumerate(toy_records.SHAPES[:2])}
    tasks = [
        PickledTask(
            workload_key=json.dumps(["matmul_layer", *shape]), target="cuda",
            weight=times, compute_dag="",
        )
        for shape, times in calls.items()
    ]  # fmt: skip
    monkeypatch.setattr(networks, "read_task_pickle", lambda _: tasks)
    return calls


def test_means_over_networks_where_networks_are_held_out(table, network, tmp_path):
    held_out = ("split=by_network", "split.held_out=[net]", "seeds=[0]")
    result, err = table("models=[tensetmlp,random]", *held_out).done
    fitted, chance = pandas.read_csv(result["results"]).itertuples()
    folder = tmp_path / result["run_dir"] / "v100/tensetmlp/seed-0"
    tasks = pandas.read_csv(folder / "tasks.csv").set_index("task")
    best = chosen = 0.0
    measured = []
    for shape, times in network.items():
        row = tasks.loc["v100/matmul_" + "_".join(map(str, shape))]
        best += times * row.best_latency_s
        chosen += times * row.chosen_latency_s
        measured.append([
            times * toy_records.record(shape, tile, unroll)["r"][0][0]
            for tile, unroll in product((1, 2, 4, 8, 16), (0, 16, 64))
        ])  # fmt: skip
    assert len(tasks) == 2
    assert fitted.top1_network_mean == pytest.approx(best / chosen, abs=1e-6)
    every = [best / sum(pair) for pair in product(*measured)]  # of a random program of each
    assert chance.top1_network_mean == pytest.approx(sum(every) / len(every), abs=0.03)
    assert "top1_network_mean" in err  # in the table that is told


def test_a_table_without_means_over_networks_goes_on(table, tmp_path):
    first, _ = table("models=[random]", "seeds=[0]", "out=kept").done
    path = tmp_path / first["results"]
    assert "network" not in (tmp_path / "kept/results.md").read_text()
    of_networks = ["top1_network_mean", "top5_network_mean"]
    earlier = pandas.read_csv(path).drop(columns=of_networks)
    earlier.to_csv(path, index=False)
    second, _ = table("models=[random]", "seeds=[0,1]", "out=kept", "keep_rows=true").done
    assert second["rows"] == 2
    assert pandas.read_csv(path)[of_networks].isna().all(axis=None)


def test_a_variant_is_a_name_for_options_and_a_share_draws_programs(table, tmp_path):
    result, _ = table(
        "models=[blind]", "+variants.blind=['model=pacm','+model.use_dataflow=false']",
        "seeds=[0]", "shares=[0.2,1]",
    ).done  # fmt: skip
    assert set(result["mean"]) == {"v100/blind at 0.2", "v100/blind"}
    with (tmp_path / result["results"]).open() as handle:
        few, every = csv.DictReader(handle)
    assert 5 * int(few["num_train_programs"]) == int(every["num_train_programs"])  # 3 of 15
    fit = tmp_path / result["run_dir"] / "v100/blind/seed-0"
    weights = load_tensors(fit / "best.safetensors")["state"]["network"]
    assert not [name for name in weights if name.startswith("dataflow")]


@pytest.mark.slow
def test_a_variant_may_learn_from_several_platforms_and_is_judged_on_its_own(table):
    result, _ = table(
        "platforms=[v100,k80]",
        "models=[alone,joint]",
        "+variants.alone=['model=xgboost']",
        "+variants.joint=['model=xgboost','data.platform=[v100,k80]']",
        "seeds=[0]",
    ).done
    table = pandas.read_csv(result["results"])
    for _, found in table.groupby("platform"):
        rows = found.set_index("model")
        assert rows.num_tasks["joint"] == rows.num_tasks["alone"]
        assert rows.num_programs["joint"] == rows.num_programs["alone"]
        assert rows.num_train_programs["joint"] > rows.num_train_programs["alone"]
    assert table[table.model == "joint"].fit_seconds.nunique() == 1  # fitted once


@pytest.mark.parametrize(
    ("learned", "says"),
    [
        ("k80", "joint learns from k80, so it has no row of v100: leave joint out of models="),
        ("k80,t4", "no records in"),
    ],
)
def test_a_row_without_training_is_refused_before_any_fit(table, tmp_path, learned, says):
    err = table(
        "platforms=[k80,v100]", "models=[xgboost,joint]",
        f"+variants.joint=['model=xgboost','data.platform=[{learned}]']", "seeds=[0]",
    ).refusal  # fmt: skip
    assert len(err.splitlines()) == 1
    assert says in err
    assert "leave joint out of models=" in err
    assert not (tmp_path / "outputs").exists()


def test_what_every_training_is_given_is_stronger_than_a_variant(command, toy_root):
    _, err = command(
        "results_table", f"data.root={toy_root}", "platforms=[v100]", "models=[longer]",
        "+variants.longer=['model=tensetmlp','trainer.max_epochs=2','+trainer.log_every_n_steps=2']",
        "overrides=['trainer.max_epochs=1','++trainer.log_every_n_steps=1']", "seeds=[0]",
    ).done  # fmt: skip
    assert "epoch 1/1 " in err


def test_an_unknown_platform_is_an_error_not_a_gap(table):
    assert "'t4'" in table("platforms=[v100,t4]").refusal


def test_markdown_has_mean_and_sample_deviation():
    base = dict.fromkeys(("top5", "pairwise_accuracy", "top1_task_mean", "top5_task_mean"))
    known = {"platform": "p", "model": "m", "train_share": 1.0, **base}
    rows = [{**known, "top1": value} for value in (0.5, 0.7)]
    assert "| p | m | 2 | 0.600 ± 0.141 |" in markdown(rows)  # 0.2 / sqrt(2)


def run_folder(path, metrics, options):
    path.mkdir(parents=True)
    (path / "metrics.json").write_text(json.dumps(metrics))
    OmegaConf.save(OmegaConf.create(options), path / "config.yaml")
    return path


def test_numbers_and_differing_options_stand_beside_each_other_of_finished_runs(command, tmp_path):
    one = run_folder(
        tmp_path / "a=1", {"top1": 0.5, "random": {"top1": 0.25}}, {"seed": 0, "model": {"w": 1}}
    )
    two = run_folder(tmp_path / "b", {"top1": 0.75, "name": "x"}, {"seed": 0, "model": {"w": 2}})
    assert "at least two" in command("compare", two).refusal
    result, err = command("compare", f"runs=['{one}','{two}']").done
    assert result["results"] == [
        {"result": "top1", "a=1": 0.5, "b": 0.75},
        {"result": "random.top1", "a=1": 0.25, "b": None},
    ]
    assert result["options"] == [{"option": "model.w", "a=1": 1, "b": 2}]
    assert "model.w  1    2" in err
    assert "ended early" not in err
    one = run_folder(tmp_path / "a", {"top1": 0.5, "interrupted": True}, {})
    _, err = command("compare", one, two).done
    assert f"{one}: ended early; its numbers are those so far" in err
    assert "nothing: no metrics.json there" in command("compare", one, tmp_path / "nothing").refusal
    assert "given twice" in command("compare", one, f"{one}/").refusal
    for text in ("a: [", "- 1", "a: ${b}"):
        (two / "config.yaml").write_text(text)
        assert f"{two}/config.yaml: no configuration (" in command("compare", one, two).refusal
    assert command("compare", one, two, "options=false")[0] == 0


def test_a_table_has_columns_of_one_width():
    rows = [{"a": 1, "b": 0.123456}, {"a": "long", "c": None}]
    assert as_table(rows) == "a     b       c\n1     0.1235\nlong"
