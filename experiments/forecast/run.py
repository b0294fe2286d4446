"""How far predicted latencies are from measured ones, and how often the interval holds.

    python -m experiments.forecast.run                            CPUs, the bundled records
    python -m experiments.forecast.run name=gpu data.root=DIR     GPUs, public logs
    python -m experiments.forecast.run name=gpu data.root=DIR save=true

The forecast (`pruner.models.forecast`) learns from the training and validation workloads and is
tested on the others, on every platform together and with each platform left out. Beside it stand
the analyzer alone and the operations over the peak, both times the factor, and with the interval,
that their errors on the same training workloads give. Every task has the same weight. Rows of the
same name in results.csv are replaced. save=true writes the forecast of `checkpoints/forecast/`,
which learns from the training and validation workloads of all platforms.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from jaxtyping import Bool, Float

from experiments.forecast.fit import COVERED, fit_forecast
from experiments.forecast.fit import weighted_quantile as quantile
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.script import Data, run_script
from pruner.data.root import RecordRoot
from pruner.data.splits import make_split
from pruner.files import merged_table, write_checksums, write_table
from pruner.models.analyzer.columns import SCORE
from pruner.models.forecast import LatencyForecast, forecast_path, least_s
from pruner.models.programs.dataset import load_programs
from pruner.models.programs.reading import ReadSpec
from pruner.paths import conf_folder, datasets_folder
from pruner.program.device import Device, load_device

HERE = Path(__file__).resolve().parent
SPLITS = {"cpu": "bundled", "gpu": "by_task"}
FORECAST, ANALYZER, PEAK = "forecast", "analyzer alone", "operations over peak"
EVERY = "all"


@dataclass(kw_only=True)
class Options:
    """Options of the script, explained above. `data.root`: for gpu, the public logs."""

    name: str = "cpu"
    data: Data = field(default_factory=lambda: Data(root=str(datasets_folder() / "bundled")))
    cache: str = "outputs/cache"
    save: bool = False
    out: str = str(HERE)


class Programs:
    """Measured programs of all platforms with the analyzer's columns."""

    def __init__(self, root: Path, split: str, cache: str) -> None:
        records = RecordRoot(root)
        spec = ReadSpec(draft=True, cache=cache)
        table = load_programs(records, records.platforms, spec).store
        sides = make_split(split, table.keys)
        test = set(sides.test)
        self.task = table.task.numpy()
        self.columns = table.draft.numpy()  # type: ignore[union-attr]
        self.latency_s = table.latency_s.numpy()
        self.weight = 1.0 / np.bincount(self.task)[self.task]
        # the same task of several platforms is in one fold
        numbers = np.array([crc32(key.task.encode()) for key in table.keys])
        self.workload = numbers[self.task]
        self.platform = np.array([key.platform for key in table.keys])[self.task]
        self.held_out = np.array([key in test for key in table.keys])[self.task]
        self.devices: dict[str, Device] = {
            name: load_device(conf_folder() / "platform" / f"{name}.yaml")
            for name in dict.fromkeys(self.platform)
        }

    def fitted(self, learned: Bool[np.ndarray, " program"]) -> LatencyForecast:
        """Learn from some programs."""
        _, task = np.unique(self.task[learned], return_inverse=True)
        known = self.columns[learned], self.latency_s[learned]
        return fit_forecast(*known, task, self.workload[learned], self.platform[learned])

    def predicted(
        self, learned: Bool[np.ndarray, " program"]
    ) -> Iterator[tuple[str, Float[np.ndarray, "program 3"]]]:
        """Predict all programs by every method, learned from some."""
        forecast, seconds = self.fitted(learned), np.empty((len(self.task), 3))
        least = np.empty(len(self.task))
        for name, device in self.devices.items():
            own = self.platform == name
            seconds[own] = forecast(self.columns[own], device)
            least[own] = least_s(self.columns[own], device)
        yield FORECAST, seconds
        tail = (1 - COVERED) / 2
        for method, raw in ((ANALYZER, np.exp(-self.columns[:, SCORE])), (PEAK, least)):
            error = np.log(self.latency_s / raw)[learned]
            shares = (tail, 0.5, 1 - tail)
            factors = [np.exp(quantile(error, self.weight[learned], share)) for share in shares]
            yield method, raw[:, None] * factors

    def judged(self, left_out: str) -> Iterator[dict[str, Any]]:
        """Judge every method on unseen workloads, with a platform left out of the training."""
        learned, tested = ~self.held_out, self.held_out
        if left_out:
            learned = learned & (self.platform != left_out)
            tested = tested & (self.platform == left_out)
        for method, seconds in self.predicted(learned):
            for platform in (left_out,) if left_out else (*self.devices, EVERY):
                rows = tested & ((self.platform == platform) | (platform == EVERY))
                yield {
                    "platform": platform,
                    "seen": "no" if left_out else "yes",
                    "method": method,
                    "tasks": len(np.unique(self.task[rows])),
                    "programs": int(rows.sum()),
                    **numbers(self.latency_s[rows], seconds[rows], self.weight[rows]),
                }


def numbers(
    latency_s: Float[np.ndarray, " program"],
    seconds: Float[np.ndarray, "program 3"],
    weight: Float[np.ndarray, " program"],
) -> dict[str, float]:
    """Compare predictions with measurements.

    ``median_ratio``: predicted over measured; ``median_factor`` and ``p90_factor``: the larger of
    both over the smaller; ``covered``: share inside the interval; ``width``: high over low, median.
    """
    low, median, high = seconds.T
    error = np.log(median / latency_s)
    inside = (low <= latency_s) & (latency_s <= high)
    return {
        "median_ratio": float(np.exp(quantile(error, weight, 0.5))),
        "median_factor": float(np.exp(quantile(np.abs(error), weight, 0.5))),
        "p90_factor": float(np.exp(quantile(np.abs(error), weight, 0.9))),
        "covered": float(np.average(inside, weights=weight)),
        "width": float(quantile(high / low, weight, 0.5)),
    }


def run(options: Options) -> dict[str, Any]:
    """Judge the forecast of a kind of device, and write it if that is asked for."""
    programs = Programs(Path(options.data.root), SPLITS[options.name], options.cache)
    rows = [{"kind": options.name, **row} for row in programs.judged("")]
    for platform in programs.devices if len(programs.devices) > 1 else ():
        rows += [{"kind": options.name, **row} for row in programs.judged(platform)]
    table = Path(options.out) / "results.csv"
    kept = sorted(merged_table(table, rows, ("kind",)), key=lambda row: str(row["kind"]))
    write_table(table, kept, floats=".4g")
    say(as_table(rows))
    if options.save:
        path = forecast_path(options.name)
        programs.fitted(~programs.held_out).save(path)
        write_checksums(path.parent, sorted(path.parent.glob("*.safetensors")))
    return {"rows": len(rows), "results": str(table)}


if __name__ == "__main__":
    run_script(Options, run, __doc__)
