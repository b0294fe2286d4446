"""Faithful presets: each item of the paper or its release that a preset has, and that it runs.

The right-hand sides are docs/paper.md's (sections 2 to 6), written out here.
"""

import math
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from pruner.cli import adapt
from pruner.cli.adapt import known_methods
from pruner.cli.shared.known import read_words
from pruner.cli.shared.options import build, plain
from pruner.cli.shared.recipe_options import recipe_of
from pruner.cli.tuning.read_options import adaptation_of
from pruner.features.columns import DATAFLOW_COLUMNS
from pruner.features.dataflow import NUM_ROWS
from pruner.models.adaptation.base import Setting
from pruner.models.analyzer.constants import OFFICIAL_TERMS, PAPER_TERMS, without
from pruner.models.checkpoint.checkpoint import load_checkpoint
from pruner.models.networks.pacm import PaCM
from pruner.models.programs.batch import NUM_STATEMENT_COLUMNS
from pruner.models.programs.scaler import ColumnScaler
from pruner.models.ranker import NeuralRanker
from pruner.program.device import load_device
from pruner.search.space import History
from pruner.study.adaptation.context import Budget
from tests.cli import gpu_records
from tests.cli.outcome import composed as by_hydra
from tests.features.matmul_skeleton import matmul_dag, matmul_steps
from tests.paths import CONF
from tests.search.tile_space import TileScore, TileSpace
from tests.tune.unhurried import UNHURRIED

PRESETS = {
    "train": ["paper_training", "paper_training_release", "paper_finetuning", "ours_training"],
    "adapt": ["paper_adaptation", "ours_adaptation"],
    "evaluate": ["paper_draft", "paper_draft_release", "ours_draft"],
    "tune": ["paper_tuning", "paper_tuning_operator", "paper_tuning_release", "ours_tuning"],
}


def test_every_preset_is_compared_here():
    there = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    named = {name for names in PRESETS.values() for name in names}
    assert {name for name in there if name.startswith(("paper_", "ours_"))} == named


def composed(command, experiment, *options):
    return deepcopy(_composed(command, f"experiment={experiment}", *options))


@cache
def _composed(command, *words):
    here = ["platform=cpu-avx512"] if command == "tune" else []  # the default of conf/tune.yaml
    return read_words(command, [*here, *words]).config


def network_items(config):
    network = recipe_of(config).model()
    return {
        "rows": network.num_dataflow_rows,
        "rows of features": NUM_ROWS[config.features.dataflow],
        "dataflow columns": len(DATAFLOW_COLUMNS),
        "statement columns": NUM_STATEMENT_COLUMNS,
        "parameters": sum(value.numel() for value in network.parameters()),
        "statement encoder": [m.out_features for m in linear(network.statement_encoder)],
        "dataflow encoder": [m.out_features for m in linear(network.dataflow_encoder)],
        "heads": network.attention.num_heads,
        "normalised by": plain(config.model).get("norm_statistics", "running"),
    }


def linear(module):
    return [part for part in module.modules() if isinstance(part, torch.nn.Linear)]


def optimizer_items(fit):
    optimizer = fit.optimizer([torch.zeros(1, requires_grad=True)])
    (group,) = optimizer.param_groups
    return {
        "optimizer": type(optimizer).__name__,
        "rate": group["lr"],
        "decay": group["weight_decay"],
        "momentum": group.get("momentum", 0),
    }


def recipe_items(config):
    """Sections 4.3, 4.5, 4.6: inputs, loss, optimiser, epochs, what is kept."""
    recipe = recipe_of(config)
    return {
        **optimizer_items(recipe),
        "inputs": "absolute" if not recipe.relative else "relative",
        "divided by": recipe.scale,
        "loss": type(recipe.loss).__name__,
        "lists": recipe.loss.lists,
        "batch": (type(recipe.batches).__name__, recipe.batches.programs),
        "schedule": recipe.schedule,
        "clip": recipe.trainer["gradient_clip_val"],
        "epochs": recipe.epochs,
        "kept": recipe.keep,
        "early stop": recipe.patience,
        "seed": recipe.seed,
    }


RELEASE = {
    "inputs": "absolute",  # 4.3: raw columns ...
    "divided by": "max",  # ... divided by their maximum over the training set
    "loss": "LambdaRank",  # 4.5
    "lists": "batch",  # 4.5: the whole batch as one list, mixing tasks
    "batch": ("MixedBatches", 512),  # 4.6
    "optimizer": "Adam",
    "rate": 7e-4,
    "decay": 1e-6,
    "momentum": 0,
    "schedule": None,  # 4.6: no decay at 50 epochs
    "clip": 0.5,
    "epochs": 50,
    "kept": "last",  # 4.6, 9 #12: the last, not the best, weights
    "early stop": 50 // 3,  # 16 epochs of the training loss
    "seed": 0,
}


@pytest.mark.parametrize("name", ["paper_training", "paper_training_release"])
def test_the_training_presets_train_as_the_release_does(name):
    assert recipe_items(composed("train", name)) == RELEASE


@pytest.mark.parametrize(
    ("name", "rows", "normalised"),
    [("paper_training", 10, "running"), ("paper_training_release", 8, "batch")],
)
def test_the_training_presets_have_the_published_network(name, rows, normalised):
    found = network_items(composed("train", name))
    assert found == {
        "rows": rows,  # 4.2: 10 x 23 in the paper, 8 x 23 in the code
        "rows of features": rows,
        "dataflow columns": 23,
        "statement columns": 174,  # 4.1: 164 + 10
        "parameters": 417_409,  # 4.4
        "statement encoder": [256, 256],
        "dataflow encoder": [64, 128],
        "heads": 4,
        "normalised by": normalised,  # 9 #9: the release scores by the statistics of the candidates
    }
    assert (
        PaCM().state_dict().keys() == recipe_of(composed("train", name)).model().state_dict().keys()
    )


def test_the_fine_tuning_preset_is_the_release_s():
    """4.6: SGD 7e-4, no momentum, no decay, batch 512, 50 epochs, no clipping, vectors kept."""
    config = composed("train", "paper_finetuning")
    changes = {"optimizer": "SGD", "decay": 0, "clip": None}
    assert recipe_items(config) == {**RELEASE, **changes}
    assert config.scaler == "keep"


def made(config, name):
    ranker = NeuralRanker(PaCM(num_dataflow_rows=8), ColumnScaler())
    methods = known_methods(plain(config.variants))
    return build(methods[name], setting=Setting(make_network=PaCM, source=ranker))


def fit_items(fit):
    """Sections 4.5, 4.6: a fit of a round."""
    return {
        **optimizer_items(fit),
        "epochs": fit.epochs,
        "steps": fit.max_steps,
        "programs": fit.batches.programs,
        "lists": fit.loss.lists,
        "clip": fit.clip,
    }


OF_ROUNDS = ("optimizer", "rate", "decay", "momentum", "epochs", "lists", "clip")
PUBLISHED_FIT = {name: RELEASE[name] for name in OF_ROUNDS} | {"steps": None, "programs": 512}
PUBLISHED_SGD = {**PUBLISHED_FIT, "optimizer": "SGD", "decay": 0, "clip": None}


@pytest.mark.parametrize(
    ("name", "period", "normalisation"),
    [("moa_official", 4, "online"), ("moa_paper", 1, "source")],
)
def test_the_adaptation_presets_fit_as_published(name, period, normalisation):
    """Section 5: momentum 0.99, every 4th update or every one, fits of 50 epochs of Adam."""
    config = composed("adapt", "paper_adaptation")
    assert set(config.method) == {"none", "finetune_official", "moa_official", "moa_paper"}
    adaptation = made(config, name)
    assert adaptation.momentum == 0.99
    assert (adaptation.period, adaptation.normalisation) == (period, normalisation)
    assert not adaptation.average_buffers  # parameters only, BN buffers never
    assert fit_items(adaptation.fit) == PUBLISHED_FIT
    budget = Budget(**plain(config.budget))
    assert (budget.trials, budget.batch, budget.max_steps) == (2000, 10, None)  # 200 rounds of 10
    assert recipe_items(config) == RELEASE  # of the source model
    assert config.features.dataflow == "official"
    assert rounds_of(config) == RELEASED_ROUNDS
    assert config.draft.form == "official"


def test_baseline_and_fine_tuning_of_the_adaptation_preset_are_the_released_ones():
    """4.6: after every round a new network, 50 epochs of all data so far."""
    config = composed("adapt", "paper_adaptation")
    assert (config.baseline, config.references) == ("scratch_official", ["random"])
    baseline = made(config, config.baseline)
    assert type(baseline).__name__ == "Scratch"
    assert fit_items(baseline.fit) == PUBLISHED_FIT
    adaptation = made(composed("adapt", "paper_adaptation"), "finetune_official")
    assert fit_items(adaptation.fit) == PUBLISHED_SGD


@pytest.mark.slow
def test_the_adaptation_presets_run(door, monkeypatch, tmp_path):
    """On fabricated GPU records with their real features; the draft is of the released form."""
    forms, load = [], adapt.load_analyzer

    def noted(*arguments, form):
        forms.append(form)
        return load(*arguments, form=form)

    monkeypatch.setattr(adapt, "load_analyzer", noted)
    root = gpu_records.write(tmp_path / "records")
    for name, form in (("paper_adaptation", "official"), ("ours_adaptation", "hardware")):
        result, _ = door(
            "adapt", f"outputs={tmp_path}", f"experiment={name}", f"data.root={root}",
            "data.cache=null", "source=k80", "target=v100", "seeds=[0]", "trainer.max_epochs=1",
            "trainer.accelerator=cpu", "budget.trials=40", "budget.least=20", "budget.labels=[0]",
            f"run_id={name}", "num_threads=1",
        ).done  # fmt: skip
        assert set(forms) == {form}
        forms.clear()
        config = composed("adapt", name)
        assert set(result["methods"]) == {*config.method, config.baseline, *config.references}
        assert all(0 <= found["area"]["mean"] < 1 for found in result["methods"].values())


OURS = {"train": "ours_training", "tune": "ours_tuning", "adapt": "ours_adaptation"}


@pytest.mark.parametrize("command", OURS)
def test_our_preset_is_the_default_but_for_the_methods_of_adaptation(command):
    words = ["source=a", "target=b"] if command == "adapt" else []
    ours = plain(composed(command, OURS[command], *words))
    default = plain(by_hydra(command, *words))
    if command == "adapt":
        assert ours.pop("method") == ["none", "finetune", "distill", "moa"]
        assert default.pop("method") == "moa"
    assert default == ours


PENALTIES = {  # 2.3: two groups, three levels each (P_l1,c has whole warps and schedulers in one)
    "c": {"reuse_c", "warp_c", "wave_c"},  # P_l0,c, P_l1,c, P_l2,c
    "m": {"registers_m", "shared_m", "transaction_m"},  # P_l0,m, P_l1,m, P_l2,m
}


def test_the_draft_presets_are_the_published_forms():
    """2.3: six penalties, all on; 2.5: wave, warp, registers, reuse and memory, all on."""
    paper = build(composed("evaluate", "paper_draft").model)
    assert (paper.form, paper.without, paper.calibrate) == ("paper", None, 0)
    assert without(PAPER_TERMS, paper.without) == PENALTIES["c"] | PENALTIES["m"]
    for group, names in PENALTIES.items():
        assert PAPER_TERMS.keys() - without(PAPER_TERMS, group) == names
    release = build(composed("evaluate", "paper_draft_release").model)
    assert (release.form, release.without) == ("official", None)
    assert OFFICIAL_TERMS.keys() == {"wave", "warp", "registers", "reuse", "memory"}
    ours = build(composed("evaluate", "ours_draft").model)
    assert ours.form == composed("tune", "ours_tuning").draft.form == "hardware"


@pytest.mark.parametrize(
    ("experiment", "expected_s"),
    [
        # 2.6, E1 with 2.3's penalties: t_c, A in runs of 8 of 32 elements, B and the result whole
        ("paper_draft", 3.49353e-6 + (65536 * 4 / 0.25 + 65536 * 4 + 16384 * 4) / 1.555e12),
        ("paper_draft_release", 3.58184e-6),  # 2.6: E1 of the code
    ],
)
def test_the_draft_presets_give_the_worked_example(experiment, expected_s):
    choice = build(composed("evaluate", experiment).model)
    device = load_device(CONF / "platform" / "a100_40.yaml")
    steps = matmul_steps(128, 128, 128, (1, 8, 2, 2), (1, 8, 2, 2), (4, 2))
    score = choice.scorer(CONF, device).score_steps(matmul_dag(128, 128, 128), [steps])
    unit = {"paper": 1.0, "official": 1e-3}[choice.form]  # the release counts milliseconds
    assert unit * math.exp(-score[0]) == pytest.approx(expected_s, rel=1e-5)


def rounds_of(config):
    """Section 3: sizes of a round."""
    settings = build(config.policy)
    return {
        "drafted": settings.draft.keep,
        "population": settings.draft.population,
        "generations": settings.draft.generations,
        "every": settings.redraft_period,
        "mutation": settings.draft.mutation_probability,
        "random sample": settings.random_sample,
        "only drafted and random verified": settings.verify.generations == 0,
        "measured in the population": settings.measured_share,
        "random of ten": int(settings.epsilon * 10),
        "draft beside the model": settings.prior,
    }


def spent(config):
    """Sections 3 and 6: trials, measurements."""
    budget = build(config.effort).budget(plain(config.budget), 27)
    measure = config.measure
    return {
        "trials": budget.trials,
        "rounds": budget.trials // budget.batch,
        "a round": budget.batch,
        "early end": (budget.seconds, budget.patience),
        "order": config.task_order,
        "repeats": measure.repeats,
        "least ms": measure.min_repeat_ms,
        "timeout": measure.run_timeout_s,
        "lag": measure.lag,
    }


PUBLISHED_BUDGET = {
    "trials": 2000,  # 3: 200 rounds of 10
    "rounds": 200,
    "a round": 10,
    "early end": (None, None),  # 6
    "order": "gradient",  # 6: Ansor's
    "repeats": 1,  # 3: repeat 1, min_repeat_ms 300, run timeout 25 s
    "least ms": 300,
    "timeout": 25,
    "lag": 0,
}


@pytest.mark.parametrize("name", ["paper_tuning", "paper_tuning_release"])
def test_the_tuning_presets_spend_and_learn_as_published(name):
    config = composed("tune", name)
    assert spent(config) == PUBLISHED_BUDGET
    assert build(config.model).num_dataflow_rows == (10 if name == "paper_tuning" else 8)
    assert config.draft.form == ("paper" if name == "paper_tuning" else "official")
    assert (config.inputs.relative, config.inputs.scale) == (False, "max")  # 4.3
    adaptation = adaptation_of(config)(setting=Setting(make_network=PaCM))
    assert type(adaptation).__name__ == "Scratch"  # 4.6: a new network after every round
    assert fit_items(adaptation.fit) == PUBLISHED_FIT


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        *(("moa", "Adam"), ("finetune_official", "SGD")),
        *(pytest.param(n, "Adam", marks=pytest.mark.slow) for n in ("moa_official", "finetune")),
    ],
)
def test_every_way_to_adapt_fits_50_epochs_by_its_own_rule(name, optimizer):
    """Section 5: MoA's fits are those of 4.6; the release fine-tunes by plain SGD. The preset's fit
    took the place of the latter."""
    source = NeuralRanker(PaCM(), ColumnScaler(), relative=False)
    config = composed("tune", "paper_tuning", f"adaptation={name}")
    adaptation = adaptation_of(config)(setting=Setting(make_network=PaCM, source=source))
    found = fit_items(adaptation.fit)
    assert (found["epochs"], found["steps"], found["optimizer"]) == (50, None, optimizer)


def test_the_tuning_preset_runs_in_offline_mode():
    """Section 5, pam-no-update: its fit was given to what fits nothing."""
    source = NeuralRanker(PaCM(), ColumnScaler(), relative=False)
    config = composed("tune", "paper_tuning", "adaptation=none")
    adaptation = adaptation_of(config)(setting=Setting(make_network=PaCM, source=source))
    assert not adaptation.learns


def test_single_operators_of_the_paper_have_fewer_trials_and_shorter_timings():
    """Section 3: 800 trials, min_repeat_ms 100; all else is that of networks."""
    network, operator = (composed("tune", f"paper_tuning{end}") for end in ("", "_operator"))
    changed = {"trials": 800, "rounds": 80, "least ms": 100}
    assert spent(operator) == {**PUBLISHED_BUDGET, **changed}
    operator.budget.trials, operator.measure.min_repeat_ms = 2000, 300
    assert plain(operator) == plain(network)


def test_rounds_of_the_paper():
    """Section 3: S_spec of 512 drafted in every round; they and random ones are verified."""
    assert rounds_of(composed("tune", "paper_tuning")) == {
        "drafted": 512,
        "population": 2048,  # not published; Ansor's sizes, by which the paper counts 8,000 (1)
        "generations": 4,
        "every": 1,
        "mutation": 0.85,
        "random sample": 128,  # not published: "merge S_spec with randomly initialised schedules"
        "only drafted and random verified": True,
        "measured in the population": 0,
        "random of ten": 1,  # nine best and one random
        "draft beside the model": 0,
    }


RELEASED_ROUNDS = {
    "drafted": 512,  # potential_space_size
    "population": 1536,
    "generations": 2,
    "every": 2,  # potential_space_iter
    "mutation": 0.85,
    "random sample": 1536,  # sample_init_population in one batch
    "only drafted and random verified": False,
    "measured in the population": 0.1,
    "random of ten": 1,
    "draft beside the model": 0,
}


def test_rounds_of_the_release():
    """Section 3, table: Pruner's column."""
    config = composed("tune", "paper_tuning_release")
    assert rounds_of(config) == RELEASED_ROUNDS
    verify = build(config.policy).verify
    assert (verify.population, verify.generations) == (1536, 1)  # GA with PaCM: one iteration


def test_a_published_run_has_200_rounds_and_verifies_only_what_is_drafted_or_random():
    """The paper's preset in a toy space with a learned model that counts what it is asked."""
    config, space, true, asked = composed("tune", "paper_tuning"), TileSpace(), TileScore(), []

    def learner(history):
        def score(wanted):
            asked.append(len(wanted))
            return true(wanted)

        return score if len(history) else None

    rng = np.random.default_rng(0)
    search = build(config.policy).make(space, TileScore(config.draft.form), learner, rng)
    measured, rounds = [], 4  # of 200: the toy space is small
    history = History(space)
    for _ in range(rounds):
        proposed = search.propose(config.budget.batch, history)
        latency_s = np.exp(-true(proposed))
        history.add(proposed, latency_s)
        measured.append(latency_s)
    assert sum(map(len, measured)) == 10 * rounds
    assert len(asked) == rounds - 1  # once a round: no evolution with the learned model
    assert max(asked) <= 512 + 128
    drawn = true(space.sample(10 * rounds, np.random.default_rng(1)))
    assert np.concatenate(measured).min() < np.exp(-drawn.max())


@pytest.mark.tvm
@pytest.mark.slow
@pytest.mark.parametrize("name", PRESETS["tune"])
def test_the_tuning_presets_run_on_this_cpu(command, name):
    options = ["workload.m=64", "workload.n=64", "workload.k=64", "measure.min_repeat_ms=1"]
    result, _ = command(
        "tune", f"experiment={name}", "platform=cpu", "draft.form=hardware", "budget.trials=12",
        "budget.batch=4", *options, *UNHURRIED,
    ).done  # fmt: skip
    assert (result["trials"], result["failed"]) == (12, 0)


@pytest.mark.parametrize("name", ["paper_training", "ours_training"])
def test_the_other_training_presets_run(command, toy_root, name):
    options = (f"data.root={toy_root}", "trainer.max_epochs=2", "trainer.accelerator=cpu")
    result, _ = command("train", f"experiment={name}", "platform=k80", *options).done
    _, about = _load(result)
    assert about.dataflow == "paper"  # 10 rows
    if name == "paper_training":
        assert about.metrics["epoch"] == 1  # the last of two


def test_the_training_presets_run_and_the_fine_tuning_goes_on(command, toy_root):
    options = (f"data.root={toy_root}", "trainer.max_epochs=2", "trainer.accelerator=cpu")
    release = "experiment=paper_training_release"
    first, _ = command("train", release, "platform=k80", *options).done
    given = f"checkpoint={first['checkpoint']}"
    second, _ = command(
        "train", "experiment=paper_finetuning", "platform=v100", given, *options
    ).done
    (old, about), (new, info) = (_load(run) for run in (first, second))
    assert (about.dataflow, info.dataflow) == ("official", "official")
    assert about.metrics["epoch"] == 1  # the last of two
    assert torch.equal(old.scaler.statement_scale, new.scaler.statement_scale)
    assert set(info.seen_tasks) == {"k80", "v100"}


def _load(result):
    return load_checkpoint(Path(result["checkpoint"]))
