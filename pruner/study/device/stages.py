"""The stages of a campaign, in the order of their value; each is a box of commands.

What one stage finds the next ones may use, but none needs another: what there is time for is there.
"""

from collections.abc import Iterator, Sequence

from pruner.study.device.operators import OPERATORS, SANITY
from pruner.study.device.options import LEAST_S, CampaignOptions
from pruner.study.device.state import STATE_FILE
from pruner.study.steps.boxes import Box
from pruner.study.steps.step import Step

OURS, METASCHEDULE, RANDOM = "ours", "metaschedule", "random"
POLICIES = {
    OURS: (),
    METASCHEDULE: ("policy=metaschedule", "+policy.num_warmup_samples=32"),
    RANDOM: ("policy=random",),
}
# Shares of the minutes: sanity, operators, networks, pools, adaptation.
SHARES = {"sanity": 0.06, "operators": 0.44, "networks": 0.28, "pools": 0.14, "adaptation": 0.08}
# Seconds before any of a kind has run: of a trial, of one command.
GUESSES = {
    "state": 5.0, "check": 20.0, "ours": 0.6, "metaschedule": 1.5, "random": 0.6,
    "beside": 45.0, "network": 1.0, "deploy": 90.0, "pool": 0.4, "adapt": 0.8,
}  # fmt: skip
_TORCH = "beside=[eager,compile,autotune]"


def boxes(options: CampaignOptions) -> list[Box]:
    """All stages with their shares of the minutes."""
    makers = {
        "sanity": _sanity,
        "operators": _operators,
        "networks": _networks,
        "pools": _pools,
        "adaptation": _adaptation,
    }
    return [
        Box(
            name=name,
            steps=lambda make=make: make(options),  # type: ignore[misc]
            seconds=60 * options.minutes * SHARES[name],
            least_s=LEAST_S,
        )
        for name, make in makers.items()
    ]


def _sanity(options: CampaignOptions) -> Iterator[Step]:
    """The device's own words; three kernels that are right, against torch too."""
    state = options.out / STATE_FILE
    words = ["pruner/study/device/state.py", str(state)]
    yield Step(name="state", words=words, leaves=state, kind="state")
    for name in SANITY:
        tuned = _tune(options, f"sanity-{name}", name, ["budget.trials=8", "verify=false"], "check")
        yield tuned
        if not options.compile_only:
            yield _kernels(options, tuned, (), ["beside=[eager]"])


def _operators(options: CampaignOptions) -> Iterator[Step]:
    """Every operator by all policies with equal trials; the kernels of all beside torch's."""
    for name in options.operators or OPERATORS:
        runs = {
            policy: _tune(
                options,
                f"{name}-{policy}",
                name,
                [*words, f"budget.trials={options.trials}"],
                policy,
                size=options.trials,
            )
            for policy, words in POLICIES.items()
        }
        yield from runs.values()
        if not options.compile_only:
            others = [runs[METASCHEDULE], runs[RANDOM]]
            built = [_kernels(options, run, (), []) for run in others]
            yield from built
            compare = f"compare=[{','.join(str(run.leaves.parent) for run in others)}]"
            yield _kernels(options, runs[OURS], built, [_TORCH, compare])


def _networks(options: CampaignOptions) -> Iterator[Step]:
    """Whole networks by ours, beside torch."""
    for precision in options.precisions:
        for network in options.networks:
            name = f"{network}-{precision}"
            words = [f"network={network}", f"precision={precision}", "deploy=false"]
            words.append(f"budget.trials={options.network_trials}")
            tuned = _step(options, name, words, "network", size=options.network_trials)
            yield tuned
            yield Step(
                name=f"{name}, beside others",
                words=["deploy.py", f"run={tuned.leaves.parent}", _TORCH],
                leaves=tuned.leaves.parent / "deploy.json",
                kind="deploy",
                needs=(tuned,),
            )


def _pools(options: CampaignOptions) -> Iterator[Step]:
    """Uniform samples of every operator's space, timed twice: records to learn from."""
    if options.compile_only:
        return
    for name in options.operators or OPERATORS:
        folder = options.out / "collect" / name
        words = ["collect.py", "backend=tvm", *options.platform, *OPERATORS[name]]
        words += [f"programs={options.pool}", f"out={folder}"]
        leaves = folder / "metrics.json"
        yield Step(name=f"{name}, pool", words=words, leaves=leaves, kind="pool", size=options.pool)


def _adaptation(options: CampaignOptions) -> Iterator[Step]:
    """A model of another device, adapted while it tunes, against none."""
    if options.compile_only or options.checkpoint is None:
        return
    for name in ("matmul", "conv2d"):
        for method in ("moa", "finetune", "distill"):
            words = [f"checkpoint={options.checkpoint}", f"adaptation={method}"]
            words.append(f"budget.trials={options.trials}")
            yield _tune(options, f"{name}-{method}", name, words, "adapt", size=options.trials)


def _tune(
    options: CampaignOptions,
    name: str,
    operator: str,
    words: Sequence[str],
    kind: str,
    size: float = 1.0,
) -> Step:
    return _step(options, name, [*OPERATORS[operator], *words], kind, size)


def _step(
    options: CampaignOptions, name: str, words: Sequence[str], kind: str, size: float = 1.0
) -> Step:
    folder = options.runs(name)
    told = ["tune.py", *options.platform, *words, *options.more]
    told += [f"outputs={options.out}", f"run_id={name}"]
    if options.compile_only:
        told.append("compile_only=true")
    leaves = folder / "metrics.json"
    return Step(
        name=name, words=told, leaves=leaves, kind=kind, size=size, budget="budget.seconds"
    )


def _kernels(
    options: CampaignOptions, tuned: Step, needs: Sequence[Step], words: Sequence[str]
) -> Step:
    folder = tuned.leaves.parent
    file = "kernels_beside.json" if words else "kernels.json"
    return Step(
        name=f"{tuned.name}, {'beside others' if words else 'built'}",
        words=["deploy.py", f"run={folder}", *words],
        leaves=folder / file,
        kind="beside",
        needs=(tuned, *needs),
    )
