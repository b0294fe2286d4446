"""Choose the variants of a network by the drafts of their tasks.

A worker process finds the variants and lowers each of them by itself. Their tasks are drafted into
the folder of the network's own drafts, so that the drafts of the chosen variants are used again. A
run that measures tunes the network with the chosen variants and without, and
:mod:`pruner.tune.deploy.forms` builds the faster form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pruner.files import as_written, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.processes import JobFailed, Worker, ask
from pruner.progress import Log, silent
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.draft_network import FOLDER, DraftSummary, DraftWorkers, draft_tasks
from pruner.tune.networks.draft_task import VIEW
from pruner.tune.networks.extraction import LOG, read_tasks, save_tasks
from pruner.tune.networks.lowering import NetworkFormat, first_line, formed, lower
from pruner.tune.networks.network_tasks import NetworkTask, network_tasks
from pruner.tune.networks.request import REQUEST, NetworkRequest, sized_network
from pruner.tune.networks.source import NetworkSource
from pruner.tune.networks.variants.search import Found, describe, find
from pruner.tune.networks.variants.writing import alone

VARIANTS, _TASKS = "variants.json", "variant_tasks.json"
WITH, WITHOUT = "variants", "original"  # forms of a network
MARGIN = 0.9  # a variant is chosen if its estimate is below this share of the original's
_LIMIT_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The original of a class of regions, or a variant by its steps.

    ``tasks``: calls of each of its tasks. ``cost`` is the search's, in multiples of the original's,
    ``estimate_s`` the analyzer's, None without one. ``error``, ``bound`` and ``check_s`` are of the
    check (:class:`~pruner.tune.networks.variants.check.Verdict`).
    """

    steps: Sequence[str]
    tasks: Mapping[str, int]
    cost: float = 1.0
    error: float = 0.0
    bound: float = 0.0
    check_s: float = 0.0
    estimate_s: float | None = None
    chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternatives:
    """The alternatives of a class of regions, which occurs ``count`` times; the original first."""

    key: str
    region: str
    count: int
    ways: Sequence[Alternative]


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantReport:
    """What a search found, left out and chose, in ``seconds``.

    ``latencies_s``: of the libraries of both forms, timed in turns; ``built``: the form of the
    network's library. Both are empty before, and in runs that measure nothing.
    """

    classes: Sequence[Alternatives] = field(default_factory=list)
    left_out: Sequence[str] = field(default_factory=list)
    seconds: float = 0.0
    built: str = ""
    latencies_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def chosen(self) -> dict[str, list[str]]:
        """The steps of the chosen variants, by class."""
        ways = ((one.key, way) for one in self.classes for way in one.ways)
        return {key: list(way.steps) for key, way in ways if way.chosen and way.steps}

    def save(self, folder: Path) -> None:
        """Write the report into a run folder."""
        write_json(folder / VARIANTS, asdict(self), indent=1)

    @staticmethod
    def read(folder: Path) -> VariantReport:
        """Read the report of a run folder; raise `DataError` if damaged."""
        with as_written(folder / VARIANTS):
            content = read_json(folder / VARIANTS, dict)
            classes = [
                Alternatives(**{**one, "ways": [Alternative(**way) for way in one["ways"]]})
                for one in content.pop("classes")
            ]
            return VariantReport(classes=classes, **content)


def choose_variants(
    source: NetworkSource,
    platform: Platform,
    analyzer: Analyzer | None,
    folder: Path,
    form: NetworkFormat,
    *,
    seed: int = 0,
    worker: Worker | None = None,
    workers: DraftWorkers | None = None,
    log: Log = silent,
) -> NetworkFormat:
    """Return `form` with the variants that the draft estimates to be faster.

    A network in which none can be found goes on as it is; `log` gets the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = json.loads(platform.target_json)
    NetworkRequest(source=source.resolved, target=target, form=form).save(folder / REQUEST)
    how: dict[str, Any] = {"log_file": folder / LOG, "timeout_s": _LIMIT_S, "worker": worker}
    try:
        ask(__name__, write_variants.__name__, folder, **how)
    except JobFailed as failed:
        log(f"variants: the network stays as it is ({failed})")
        return form
    report = VariantReport.read(folder)
    for line in report.left_out:
        log(f"variants: left out: {line}")
    tasks = [task.workload for task in read_tasks(folder / _TASKS)]
    log(
        f"variants: {sum(len(one.ways) - 1 for one in report.classes)} of {len(report.classes)} "
        f"classes of regions, found in {report.seconds:.1f} s; {len(tasks)} tasks to draft"
    )
    drafts = draft_tasks(
        tasks, platform, analyzer, folder / FOLDER, seed=seed, workers=workers, log=log
    )
    report = replace(report, classes=[_chosen(one, drafts) for one in report.classes])
    report.save(folder)
    for line in lines(report):
        log(line)
    return replace(form, variants=report.chosen)


def lines(report: VariantReport) -> list[str]:
    """Describe the chosen variants."""
    found = []
    for one in report.classes:
        for way in one.ways:
            before = one.ways[0].estimate_s
            if way.chosen and way.steps and way.estimate_s is not None and before is not None:
                found.append(
                    f"variants: {one.count} x {one.region}: {', '.join(way.steps)}; estimate "
                    f"{1e3 * before:.3g} ms -> {1e3 * way.estimate_s:.3g} ms; rounding error "
                    f"{way.error:.1e} of the largest value, {one.ways[0].error:.1e} without"
                )
    unknown = sum(one.ways[0].estimate_s is None for one in report.classes)
    if unknown:
        found.append(
            f"variants: {unknown} of {len(report.classes)} classes of regions stay as they are: "
            "the draft has no estimate for the original"
        )
    return [*(found or ["variants: none is estimated to be faster"]), *measured_lines(report)]


def measured_lines(report: VariantReport) -> list[str]:
    """Describe the form that is built, after both were timed."""
    if not report.built:
        return []
    kept = f"the library is built {'with' if report.built == WITH else 'without'} them"
    if not {WITH, WITHOUT} <= report.latencies_s.keys():
        return [f"variants: {kept}; the other form has no library that runs"]
    own_s, original_s = report.latencies_s[WITH], report.latencies_s[WITHOUT]
    return [
        f"variants: timed in turns, the network takes {1e3 * own_s:.4g} ms with them and "
        f"{1e3 * original_s:.4g} ms without ({original_s / own_s:.3g} times as long); {kept}"
    ]


def _chosen(one: Alternatives, drafts: DraftSummary) -> Alternatives:
    estimates = {
        draft.task: 0.0 if draft.how == VIEW else draft.estimate_s for draft in drafts.drafts
    }

    def estimate(way: Alternative) -> float:
        each = ((estimates.get(name), calls) for name, calls in way.tasks.items())
        return sum(math.inf if found is None else calls * found for found, calls in each)

    times = [estimate(way) for way in one.ways]
    best = min(range(len(times)), key=times.__getitem__)
    if not times[best] < MARGIN * times[0] or math.isinf(times[0]):
        best = 0
    ways = [
        replace(way, estimate_s=None if math.isinf(time_s) else time_s, chosen=number == best)
        for number, (way, time_s) in enumerate(zip(one.ways, times, strict=True))
    ]
    return replace(one, ways=ways)


def write_variants(folder: Path) -> None:
    """Find the variants of a requested network, and write them with their tasks.

    Raises `PrunerError`: the network cannot be imported, in one line.
    """
    request = NetworkRequest.read(folder / REQUEST)
    # variants are applied before products are converted to float16
    plain = replace(request.form, precision="float32")
    found = find(formed(sized_network(request.source), plain), request.form.precision)
    alone_form = NetworkFormat(precision=request.form.precision)
    classes, tasks, left_out = _lowered(found, request.tvm_target(), alone_form)
    save_tasks(tasks, folder / _TASKS)
    VariantReport(
        classes=classes, left_out=[*found.left_out, *left_out], seconds=found.seconds
    ).save(folder)


def _lowered(
    found: Found, target: Any, form: NetworkFormat
) -> tuple[list[Alternatives], list[NetworkTask], list[str]]:
    """Lower every alternative by itself; what TVM cannot lower is left out."""
    classes, tasks, left_out = [], dict[str, NetworkTask](), list[str]()
    for region, count, variants in found.classes:
        name, ways = describe(region), []
        original = Alternative(steps=[], tasks={}, error=variants[0].verdict.own_error)
        every = [(original, region.graph)]
        for variant in variants:
            verdict = variant.verdict
            way = Alternative(
                steps=variant.steps,
                tasks={},
                cost=variant.cost,
                error=verdict.error,
                bound=verdict.bound,
                check_s=verdict.seconds,
            )
            every.append((way, variant.graph))
        for way, graph in every:
            try:
                own = network_tasks(lower(alone(region, graph), target, form), target)
            except Exception as error:  # passes raise kinds of their own
                left_out.append(f"{name}: {way.steps}: {first_line(error)}")
                if not way.steps:
                    break
                continue
            tasks |= {task.key: task for task in own}
            ways.append(replace(way, tasks={task.name: task.weight for task in own}))
        if len(ways) > 1:
            classes.append(Alternatives(key=region.key, region=name, count=count, ways=ways))
    return classes, list(tasks.values()), left_out
