"""Forecast networks from the drafts of their tasks; nothing is built or run.

A task is drafted once, and equally deep in every network: so the forecast of a network does not
depend on the networks before it. The seconds of a network are the sum of its tasks' seconds, each
times its calls.
"""

import json
import os
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self

import pruner
from pruner.errors import DataError
from pruner.files import as_written, digest_of, read_json, write_json
from pruner.models.analyzer.analyzer import Analyzer
from pruner.models.forecast import Forecast, forecast_of
from pruner.processes import Reply
from pruner.tune.measure.measurer import Platform
from pruner.tune.networks.draft_network import DraftWorkers, answer_of, seed_of
from pruner.tune.networks.draft_task import NONE, VIEW, Depth, Draft, Drafted, DraftJob
from pruner.tune.networks.extraction import drop_oldest
from pruner.tune.networks.filtering.candidates import Candidates
from pruner.tune.networks.filtering.outline import Outline, outline
from pruner.tune.networks.lowering import NetworkFormat
from pruner.tune.networks.source import import_module

DEPTH = Depth(sample=512, rounds=2)
_AHEAD = 4  # networks whose tasks are drafted while a network waits for its own
_CODE = ("program", "features", "models/analyzer", "search", "tune")  # decides what is drafted
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "numpy")
_DIGITS = 32  # of the name of a folder of drafts
_MOST_BYTES = 1 << 30  # of all these folders but the one in use


class KeptDrafts(dict[str, Drafted]):
    """The drafts of tasks by structural hash, in memory and below a folder.

    ``folder`` None: in memory alone. ``digest``: of all that decides the draft of a task, besides
    the task; the name of a folder.
    """

    def __init__(
        self, folder: Path | None, *, target: str, analyzer: Analyzer, depth: Depth, seed: int
    ) -> None:
        about = {
            "target": target,
            # plain numbers and words alone
            "analyzer": [type(analyzer).__name__, asdict(analyzer)],
            "depth": asdict(depth),
            "seed": seed,
            "versions": [version(name) for name in _PACKAGES],
            "code": _code(),
        }
        text = json.dumps(about, sort_keys=True, default=str)
        self.digest = sha256(text.encode()).hexdigest()[:_DIGITS]
        self._folder = None if folder is None else folder / self.digest
        super().__init__()
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            for path in sorted(self._folder.glob("*.json")):
                with suppress(DataError):  # damaged: drafted again
                    self[path.stem] = _read(path)
            with suppress(OSError):  # of another user, or removed meanwhile
                os.utime(self._folder)
                # the user may keep other folders beside ours
                ours = set(self._folder.parent.glob("[0-9a-f]" * _DIGITS)) - {self._folder}
                drop_oldest(ours, _MOST_BYTES)

    def keep(self, key: str, drafted: Drafted) -> None:
        """Store a draft; without a program in memory alone."""
        self[key] = drafted
        # a task without a program has lost it perhaps to a time limit, or to a lack of memory
        if self._folder is not None and drafted.draft.how != NONE:
            with suppress(OSError):  # removed meanwhile, or a full disk: drafted again
                write_json(self._folder / f"{key}.json", asdict(drafted))


def _read(path: Path) -> Drafted:
    with as_written(path):
        row = read_json(path, dict)
        return Drafted(**{**row, "draft": Draft(**row["draft"])})


@cache
def _code() -> str:
    folder = Path(pruner.__path__[0])
    parts = sorted(path for part in _CODE for path in (folder / part).rglob("*.py"))
    return digest_of([folder / "arrays.py", *parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkForecast:
    """The expected seconds of a network, its memory and its arithmetic.

    ``forecast``: None where a task has none, with the ``reason``. ``parameter_bytes`` and
    ``activation_bytes``: see :class:`~pruner.tune.networks.filtering.outline.Outline`. ``tasks``:
    distinct tasks; ``drafted``: how many of these were drafted for this network, the drafts of the
    others existed. ``seconds``: the time of the forecast, from the end of the forecast before it.
    The forecast is of the network as drafted; tuning can make it faster.
    """

    name: str
    forecast: Forecast | None = None
    parameter_bytes: int | None = None
    activation_bytes: int | None = None
    flops: float | None = None
    tasks: int = 0
    drafted: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def median_s(self) -> float:
        """Return the expected seconds; infinite without a forecast."""
        return float("inf") if self.forecast is None else self.forecast.median_s

    def may_take(self, limit_s: float) -> bool:
        """Check whether the network may be as fast as a limit.

        False where the interval of 90 % lies above the limit: its low end is larger. True without a
        forecast.
        """
        return self.forecast is None or self.forecast.low_s <= limit_s

    def row(self) -> dict[str, Any]:
        """Return the columns of a table; None where unknown."""
        low, median, high = (None,) * 3 if self.forecast is None else self.forecast.seconds
        others = {one.name: getattr(self, one.name) for one in fields(self)[2:]}
        known = {"network": self.name, "low_s": low, "predicted_s": median, "high_s": high}
        return known | others


def sum_of(
    drafts: Mapping[str, Draft], calls: Mapping[str, float], analyzer: Analyzer
) -> tuple[Forecast | None, str]:
    """Sum the forecasts of a network's tasks, both by the same keys.

    There is none unless every task has one: a sum of some tasks would be taken for the network.
    Reshapes take no time. Returns the reason, too, where there is none.
    """
    timed = [key for key in calls if drafts[key].how != VIEW]
    lacking = sorted(drafts[key].task for key in timed if not drafts[key].columns)
    if lacking:
        return None, f"no forecast of {', '.join(lacking)}"
    columns = [drafts[key].columns or () for key in timed]
    found = forecast_of(columns, [calls[key] for key in timed], analyzer.device)
    return found, "" if found else "no forecast of its programs on this device"


class NetworkForecaster:
    """Forecasts networks on a platform; keeps the drafts of their tasks.

    It must be closed: it has worker processes, from the first task that must be drafted.
    """

    def __init__(
        self,
        platform: Platform,
        analyzer: Analyzer,
        form: NetworkFormat,
        *,
        drafts: Path | None = None,
        seed: int = 0,
        depth: Depth = DEPTH,
    ) -> None:
        """``drafts``: a folder in which drafts are kept for later; None: in memory alone."""
        self.platform, self.analyzer, self.form = platform, analyzer, form
        self._depth, self._seed = depth, seed
        self.drafts = KeptDrafts(
            drafts, target=platform.target_json, analyzer=analyzer, depth=depth, seed=seed
        )
        self._workers: DraftWorkers | None = None
        self._running: dict[str, tuple[DraftJob, Future[Reply]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes; another forecast starts others."""
        if self._workers is not None:
            self._workers.close()
        self._workers, self._running = None, {}

    def module(self, module: Any, inputs: Any, name: str) -> NetworkForecast:
        """Forecast a module of torch in evaluation mode, which is imported in this process.

        Raises `PrunerError`: it cannot be imported.
        """
        start = time.perf_counter()
        imported = import_module(module, inputs, name)
        found = outline(imported, self.platform.target, self.form, self.drafts)
        started = self._start(found)
        return self._finish(replace(found, name=name), started, start)

    def candidates(self, candidates: Candidates) -> Iterator[NetworkForecast]:
        """Forecast candidates, in order; later candidates are imported and drafted meanwhile.

        Raises `PrunerError`: their generator cannot be used.
        """
        last = time.perf_counter()
        waiting: deque[tuple[Outline, int]] = deque()

        def next_one() -> NetworkForecast:
            nonlocal last
            found = self._finish(*waiting.popleft(), last)
            last = time.perf_counter()
            return found

        given = self.platform.target_json, self.form, self.drafts
        with closing(candidates.outlined(*given)) as outlines:
            for one in outlines:
                waiting.append((one, self._start(one)))
                while len(waiting) > _AHEAD or (waiting and self._is_done(waiting[0][0])):
                    yield next_one()
        while waiting:
            yield next_one()

    def _start(self, outline: Outline) -> int:
        """Queue the drafts that are missing; return their number."""
        new = {
            task.key: task
            for task in outline.tasks
            if task.key not in self.drafts and task.key not in self._running
        }
        if new and self._workers is None:
            self._workers = DraftWorkers()
        for key, task in new.items():
            assert task.module is not None, key
            job = DraftJob(
                task=task.name,
                module=task.module,
                target=self.platform.target_json,
                analyzer=self.analyzer,
                depth=self._depth,
                # equal tasks have other names in other networks
                seed=seed_of(task.key, self._seed),
            )
            assert self._workers is not None
            self._running[key] = job, self._workers.draft(job)
        return len(new)

    def _is_done(self, one: Outline) -> bool:
        running = (self._running[t.key][1] for t in one.tasks if t.key not in self.drafts)
        return all(future.done() for future in running)

    def _finish(self, found: Outline, drafted: int, start: float) -> NetworkForecast:
        """Wait for the drafts of a network, and sum."""
        if found.reason:
            seconds = time.perf_counter() - start
            return NetworkForecast(name=found.name, seconds=seconds, reason=found.reason)
        for task in found.tasks:
            if task.key not in self.drafts:
                job, future = self._running.pop(task.key)
                self.drafts.keep(task.key, answer_of(job, future.result()))
        drafts = {task.key: self.drafts[task.key].draft for task in found.tasks}
        calls = {task.key: float(task.weight) for task in found.tasks}
        forecast, reason = sum_of(drafts, calls, self.analyzer)
        return NetworkForecast(
            name=found.name,
            forecast=forecast,
            parameter_bytes=found.parameter_bytes,
            activation_bytes=found.activation_bytes,
            flops=found.flops,
            tasks=len(found.tasks),
            drafted=drafted,
            seconds=time.perf_counter() - start,
            reason=reason,
        )
