"""The stages of a campaign, most valuable first.

Each stage is a time slot of commands. A stage may use the results of earlier stages but needs none
of them, so with little time the first stages are complete. With ``compile_only`` all programs are
chosen and built, and none is run. Then stages that only time something have no work, and the
machine with the device does not have to build the pools again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from experiments.common.comparison import Box, Step, quoted, taken_up
from experiments.gpu.options import LEAST_S, CampaignOptions, Group, NetworkChoice
from pruner.errors import check_chosen
from pruner.tune.deploy.built_files import COMPARISON_FILE, DEPLOY_FILE, KERNELS_FILE
from pruner.tune.pools.records import ABOUT

OURS, METASCHEDULE, RANDOM = "ours", "metaschedule", "random"
POLICIES: Mapping[str, Sequence[str]] = {
    OURS: (),
    # its model counts from 32 programs of a task on (100 by default, more than a task gets)
    METASCHEDULE: ("policy=metaschedule", "+policy.num_warmup_samples=32"),
    RANDOM: ("policy=random",),
}
ADATUNE = "adatune"  # where it is asked for
SCRATCH = "scratch"
METHODS = (SCRATCH, "moa", "finetune", "distill")
# Seconds where nothing of a kind has run yet: of a trial, a program of a pool, a task beside
# others, a network built and beside others. Measured on an H200 with 16 cores: ours (.65 float32,
# 1.8 float16), MetaSchedule (6 and 4.1), "beside", "network", "pool", "built". The others are
# guesses.
GUESSES = {
    "check": 0.8, OURS: 0.9, METASCHEDULE: 4.5, RANDOM: 0.9, "beside": 27.0, "finals": 90.0,
    "network": 2.2, "network beside": 150.0, "network finals": 240.0, "pool": 0.3, "adapt": 0.9,
    "built": 80.0, "network rival": 6.0, "network rivals": 180.0, ADATUNE: 0.9,
}  # fmt: skip
# Seconds of a tuning command outside of its own budget: imports, kernels as libraries. A smaller
# budget than this is used up by the start of the processes that build and run (9 s on an H200).
START_S, LEAST_BUDGET_S = 20.0, 30.0
ADAPTATION = "adaptation"
NO_MODEL = (
    f"{ADAPTATION}: left out, its minutes go to the stages after it: no checkpoint= of another "
    "device; python train.py platform=k80 data.root=DIR makes one, and python -m "
    "experiments.gpu.package model.records=DIR packs one"
)
_Stage = Callable[[CampaignOptions], Iterator[Step]]


def boxes(options: CampaignOptions) -> list[Box]:
    """The requested stages and their shares; raises PrunerError if unknown."""
    known = {**STAGES, **ON_REQUEST}
    check_chosen("stages", options.stages, known)
    chosen = {name: known[name] for name in known if name in (options.stages or STAGES)}
    whole = sum(share for share, _ in chosen.values())
    return [
        Box(
            name=name,
            steps=partial(make, options),
            seconds=60 * options.minutes * share / whole,
            least_s=LEAST_S,
        )
        for name, (share, make) in chosen.items()
    ]


def left_out(options: CampaignOptions) -> list[str]:
    """Requested stages without work, a line each with the missing input."""
    asked = {box.name for box in boxes(options)}
    lacks_model = options.checkpoint is None and not options.compile_only
    return [NO_MODEL] if lacks_model and ADAPTATION in asked else []


def _sanity(options: CampaignOptions) -> Iterator[Step]:
    """A few kernels, also checked against torch, and the spread of timings."""
    group, trials = options.sanity, options.size.sanity_trials
    tuned = _tuned(options, group, group.name, ["verify=false"], trials, "check")
    yield tuned
    yield from _beside(options, tuned, "beside", options.size.beside, group=group)


def _operators(options: CampaignOptions) -> Iterator[Step]:
    """Every group by ours, with torch; then at random and by MetaSchedule, which is slowest.

    The stage ``finals`` times its kernels in turns with ours.
    """
    runs = {
        (group.name, policy): _tuned(
            options, group, f"{group.name}-{policy}", words, options.size.trials, policy
        )
        for group in options.groups
        for policy, words in POLICIES.items()
    }
    yield from (runs[group.name, OURS] for group in options.groups)
    for group in options.groups:
        ours, rival = runs[group.name, OURS], (runs[group.name, METASCHEDULE],)
        yield from _beside(options, ours, "beside", options.size.beside, group=group, others=rival)
    yield from (runs[group.name, RANDOM] for group in options.groups)
    yield from (runs[group.name, METASCHEDULE] for group in options.groups)


def _networks(options: CampaignOptions) -> Iterator[Step]:
    """Whole networks by ours, timed with torch or (``compile_only``) built."""
    for network, precision in options.networks:
        tuned = network_run(options, network, precision)
        yield tuned
        if options.compile_only:
            yield _built(tuned)
        yield from _beside(options, tuned, "beside", options.size.beside)


def _rivals(options: CampaignOptions) -> Iterator[Step]:
    """Networks by MetaSchedule with our trials, timed in turns with ours: hours."""
    if options.compile_only:
        return
    for network, precision in options.networks:
        ours = network_run(options, network, precision)
        rival = network_run(options, network, precision, METASCHEDULE)
        yield from (ours, rival, built := _built(rival))
        yield from _beside(options, ours, "rivals", options.size.beside, others=(built,))


def _paper(options: CampaignOptions) -> Iterator[Step]:
    """AdaTune on float32 operators (Table 6), a long reduction (Table 8)."""
    single = Group(name="float32", tasks=options.size.single)
    long, trials = options.reduction, options.size.trials
    yield _tuned(options, single, f"{single.name}-{OURS}", (), trials, OURS)
    words = [f"policy={ADATUNE}"]
    yield _tuned(options, single, f"{single.name}-{ADATUNE}", words, trials, ADATUNE)
    ours = _tuned(options, long, f"{long.name}-{OURS}", (), trials, OURS)
    yield ours
    size = options.size
    yield from _beside(options, ours, "finals", size.finals, group=long, energy_s=size.energy_s)


def _pools(options: CampaignOptions) -> Iterator[Step]:
    """Uniform samples of many tasks' spaces, timed twice, as records.

    In three steps (few, more, all), since only finished pools become records. With ``compile_only``
    they are built, and a later start with the same folder times them.
    """
    size, prepared = options.size, options.compile_only
    numbers = sorted({min(one, size.pool) for one in (size.few, 4 * size.few, size.pool)})
    for before, programs in pairwise([0, *numbers]):
        words = ["collect", "backend=tvm", f"platform={options.platform}"]
        words += [f"workloads={size.pools}", f"programs={programs}", f"out={quoted(options.pools)}"]
        words += [f"pool.apart_s={size.apart_s:g}", "measure.repeats=3"]
        words += ["measure.min_repeat_ms=20"]
        if prepared:
            words.append("prepare=true")
        yield Step(
            name=f"pools of {programs}{', built' if prepared else ''}",
            words=words,
            leaves=options.kept(f"pools-{programs}{'-built' if prepared else ''}"),
            made=options.pools / ABOUT,
            kind="pool",
            size=16 * (programs - before),
        )


def _adaptation(options: CampaignOptions) -> Iterator[Step]:
    """A model of another device, adapted while tuning, against a new model."""
    if options.compile_only or options.checkpoint is None:
        return
    group = options.adapted
    for method in METHODS:
        words = [f"adaptation={method}"]
        if method != SCRATCH:
            words.append(f"checkpoint={quoted(options.checkpoint)}")
        name = f"{group.name}-{method}"
        yield _tuned(options, group, name, words, options.size.trials, "adapt")


def _finals(options: CampaignOptions) -> Iterator[Step]:
    """The finalists again, against every compiler of torch, with energy."""
    how: Any = {"names": options.size.finals, "energy_s": options.size.energy_s}
    for group in reversed(options.groups):  # tensor cores first
        ours, rival = (
            _tuned(options, group, f"{group.name}-{policy}", (), options.size.trials, policy)
            for policy in (OURS, METASCHEDULE)
        )
        yield from _beside(options, ours, "finals", group=group, others=(rival,), **how)
    for network, precision in options.networks:
        yield from _beside(options, network_run(options, network, precision), "finals", **how)


# Shares of the minutes, and what is done in them.
STAGES: Mapping[str, tuple[float, _Stage]] = {
    "sanity": (0.07, _sanity),
    "operators": (0.40, _operators),
    "pools": (0.09, _pools),
    "networks": (0.26, _networks),
    ADAPTATION: (0.06, _adaptation),
    "finals": (0.12, _finals),
}
ON_REQUEST: Mapping[str, tuple[float, _Stage]] = {"rivals": (1.0, _rivals), "paper": (1.0, _paper)}


def network_run(
    options: CampaignOptions, network: NetworkChoice, precision: str, policy: str = OURS
) -> Step:
    """The run of a network."""
    trials = options.size.network_trials
    words = [f"network={network.name}", f"precision={precision}", "deploy=false", *network.words]
    words += [*POLICIES[policy], f"budget.trials={trials}", "budget.patience=1000000"]
    name = f"{network.label}-{precision}"
    if policy == OURS:
        return _run(options, name, words, "network", trials)
    return _run(options, f"{name}-{policy}", words, "network rival", trials)


def _tuned(
    options: CampaignOptions,
    group: Group,
    name: str,
    words: Sequence[str],
    trials: int,
    kind: str,
) -> Step:
    in_all = trials * len(group.tasks)
    told = [*group.words, *words, f"budget.trials={in_all}", "task_order=round_robin"]
    return _run(options, name, told, kind, in_all)


def _run(options: CampaignOptions, name: str, words: Sequence[str], kind: str, size: float) -> Step:
    told = ["tune", f"platform={options.platform}", *words, *options.size.settings, *options.more]
    told += [f"outputs={quoted(options.outputs)}", f"run_id={name}"]
    if options.compile_only:
        told.append("compile_only=true")
    return taken_up(
        Step(
            name=name,
            words=told,
            leaves=options.run(name) / "metrics.json",
            kind=kind,
            size=size,
            budget="budget.seconds",
            start_s=START_S,
        )
    )


def _beside(
    options: CampaignOptions,
    tuned: Step,
    stage: str,
    names: Sequence[str],
    *,
    group: Group | None = None,
    others: Sequence[Step] = (),
    energy_s: int = 0,
) -> Iterator[Step]:
    """Time a run's kernels, or its network, in turns with torch's and with other runs'.

    Kernels are compared with the `others` that have ended; a network waits for its `others`.
    """
    if options.compile_only:
        return
    folder, needs = tuned.leaves.parent, (tuned, *others)
    name, kind, made, size = tuned.name, f"network {stage}", COMPARISON_FILE, 1
    if group is not None:
        name, kind, made, size = group.name, stage, KERNELS_FILE, len(group.tasks)
        others, needs = [other for other in others if other.leaves.is_file()], (tuned,)
    runs = ",".join(quoted(other.leaves.parent) for other in others)
    words = ["deploy", f"run={quoted(folder)}", f"baselines=[{','.join(names)}]"]
    yield Step(
        name=f"{name}, {stage}",
        words=[*words, f"compare=[{runs}]", f"energy={energy_s}"],
        leaves=options.kept(f"{name}-{stage}"),
        made=folder / made,
        kind=kind,
        size=size,
        needs=needs,
    )


def _built(tuned: Step) -> Step:
    folder = tuned.leaves.parent
    return Step(
        name=f"{tuned.name}, built",
        words=["deploy", f"run={quoted(folder)}", "baselines=[]"],
        leaves=folder / DEPLOY_FILE,
        kind="built",
        needs=(tuned,),
    )
