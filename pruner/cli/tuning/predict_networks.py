"""``pruner predict networks=``: forecast networks, filter them by a limit; also from Python."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from omegaconf import DictConfig

from pruner.cli.shared.door import command_config
from pruner.cli.shared.known import check_idle
from pruner.cli.shared.options import plain, several
from pruner.cli.shared.output import UNSUCCESSFUL, as_table, quiet, say
from pruner.cli.shared.progress import track
from pruner.cli.shared.runs import open_run
from pruner.cli.tuning.platform import load_draft, network_format
from pruner.errors import PrunerError
from pruner.files import save_metrics, write_table
from pruner.models.forecast import boxed_forecast
from pruner.program.device import device_from_mapping
from pruner.tune.kinds import OPENCL
from pruner.tune.measure.machine import make_platform
from pruner.tune.networks.filtering.candidates import Candidates, read_networks, source_of
from pruner.tune.networks.filtering.forecaster import NetworkForecast, NetworkForecaster
from pruner.tune.tvm_import import cpus_only

if TYPE_CHECKING:
    from torch import Tensor, nn

TABLE = "networks.csv"
_SHOWN = 20
_FIRST = 20  # forecasts that find most tasks without a draft
_OF_TABLES = ("below_ms", "candidates", "out", "outputs", "run_id")  # of the command alone
OF_RECORDS = (
    "checkpoint", "seconds", "data.root", "data.platform", "data.duplicates", "models.own"
)  # fmt: skip


def predict_networks(config: DictConfig) -> dict[str, Any]:
    """Run the command for networks; return the object of the last line.

    Ctrl-C and errors of a generator end it; the rows of the finished forecasts are written.
    """
    start = time.perf_counter()
    candidates = candidates_of(config)
    if config.platform.kind == "cpu":
        cpus_only()
    limit_s = None if config.below_ms is None else config.below_ms / 1e3
    with forecaster_of(config) as forecaster:
        folder = open_run(config, "predict", f"{config.platform.name}-networks")
        out = Path(config.out or folder / TABLE)
        out.parent.mkdir(parents=True, exist_ok=True)
        known = len(forecaster.drafts)
        total = len(candidates.sources) or candidates.most or 0
        found: list[NetworkForecast] = []
        try:
            for one in track(forecaster.candidates(candidates), "forecasting", total):
                found.append(one)
                if one.forecast is None:
                    say(f"{one.name}: {one.reason}")
        except (KeyboardInterrupt, PrunerError):
            if found:
                say(f"{out} has the finished forecasts, of {len(found)} networks")
            raise
        finally:
            if found:
                rows = [one.row() for one in found]
                if limit_s is not None:
                    kept = [{"kept": one.may_take(limit_s)} for one in found]
                    rows = [row | more for row, more in zip(rows, kept, strict=True)]
                write_table(out, rows)
        drafted = len(forecaster.drafts) - known
    if not found:
        raise PrunerError(f"networks={config.networks}: it yields no network")
    _show(found, limit_s)
    later = [one.seconds for one in found[_FIRST:]]
    result = {
        "run_dir": str(folder),
        "table": str(out),
        "num_networks": len(found),
        "num_forecast": sum(one.forecast is not None for one in found),
        "num_kept": None if limit_s is None else sum(one.may_take(limit_s) for one in found),
        "num_drafted": drafted,
        "num_known": known,
        "seconds": round(time.perf_counter() - start, 2),
        "seconds_each": float(np.mean(later)) if later else None,
        UNSUCCESSFUL: [one.name for one in found if one.forecast is None],
    }
    save_metrics(folder, result)
    return result


def candidates_of(config: DictConfig) -> Candidates:
    """Make the candidates of ``networks=``: a file, a generator, or a list."""
    check_idle("predict", config, OF_RECORDS, "networks= forecasts networks, not records")
    words = several(config.networks)
    if len(words) == 1 and Path(words[0]).is_file() and not words[0].endswith((".pt2", ".onnx")):
        sources = read_networks(Path(words[0]), config.seed)
    elif isinstance(config.networks, str) and ":" in config.networks:
        found = Candidates(generator=config.networks, most=config.candidates)
        found.check()
        return found
    else:
        try:
            sources = [source_of(word, config.seed) for word in words if word.strip()]
        except PrunerError as error:
            raise PrunerError(f"{error}; or give a file with a network in each line") from error
    if not sources:
        raise PrunerError("networks=[]: give a file, package:function or a list of networks")
    return Candidates(sources=sources[: config.candidates], most=config.candidates)


def forecaster_of(config: DictConfig) -> NetworkForecaster:
    """Make the forecaster of the options, which the caller closes.

    Raises `MissingExtra` without lightgbm, and `PrunerError` for a platform without forecasts.
    """
    device = device_from_mapping(plain(config.platform))
    forecast = boxed_forecast(device.kind)  # without lightgbm it ends here
    platform = make_platform(device, target=plain(config.target))
    if platform.device == OPENCL:
        raise PrunerError(f"platform={device.name}: networks are not built for OpenCL yet")
    if not forecast.holds_on(device):
        raise PrunerError(
            f"platform={device.name}: there is no forecast for it; docs/filter.md lists the devices"
        )
    analyzer = load_draft(platform)
    if analyzer is None:
        raise PrunerError(f"platform={device.name}: there is nothing to draft with")
    return NetworkForecaster(
        platform,
        analyzer,
        network_format(platform.device, layout=config.layout, precision=config.precision),
        drafts=None if config.drafts is None else Path(config.drafts),
        seed=config.seed,
    )


def _show(found: Sequence[NetworkForecast], limit_s: float | None) -> None:
    kept = [one for one in found if limit_s is None or one.may_take(limit_s)]
    ranked = sorted(kept, key=lambda one: one.median_s)
    say(as_table([_line(one) for one in ranked[:_SHOWN]]))
    if len(ranked) > _SHOWN:
        say(f"... and {len(ranked) - _SHOWN} slower networks")
    if limit_s is not None:
        say(
            f"{len(kept)} of {len(found)} networks may take {1e3 * limit_s:g} ms or less as "
            "drafted (effort=draft; tuning can make a network faster); the interval of 90 % of "
            "each other network lies above the limit"
        )


def _line(one: NetworkForecast) -> dict[str, Any]:
    low, median, high = (None,) * 3 if one.forecast is None else one.forecast.seconds
    return {
        "network": one.name,
        "ms": None if median is None else 1e3 * median,
        "low": None if low is None else 1e3 * low,
        "high": None if high is None else 1e3 * high,
        "MFLOP": None if one.flops is None else one.flops / 1e6,
        "parameters MB": _megabytes(one.parameter_bytes),
        "activations MB": _megabytes(one.activation_bytes),
        "tasks": one.tasks,
    }


def _megabytes(size: int | None) -> float | None:
    return None if size is None else size / 1e6


class Forecaster:
    """Forecast modules of torch on a platform; drafts of tasks are kept.

    Use it as a context: it has worker processes from the first task that must be drafted.

    Args:
        platform: a name of ``conf/platform``; cpu: this machine's CPU.
        options: further options of ``pruner predict``, as its command line has them.

    Raises:
        PrunerError: options that ``pruner predict`` refuses or that have no effect here, or a
            device without forecasts.
    """

    def __init__(self, platform: str = "cpu", *, options: Sequence[str] = ()) -> None:
        words = ["networks=[module]", f"platform={platform}", *options]
        with quiet(), command_config("predict", words) as config:
            idle = (*OF_RECORDS, *_OF_TABLES)
            check_idle("predict", config, idle, "it has no effect on a Forecaster")
            if list(config.networks) != ["module"]:
                raise PrunerError("leave networks= out: it has no effect on a Forecaster")
            self._forecaster = forecaster_of(config)

    def __call__(
        self, model: nn.Module, inputs: Tensor | Sequence[Any] | Mapping[str, Any], name: str = ""
    ) -> NetworkForecast:
        """Forecast a module in evaluation mode; the module stays unchanged.

        `inputs`: as of ``pruner.optimize``; their values do not count.

        Raises:
            PrunerError: a module that cannot be exported or imported, or without a forecast.
        """
        import torch

        from pruner.cli.tuning.optimize import evaluated  # imports what tunes

        with torch.no_grad(), evaluated(model):
            found = self._forecaster.module(model, inputs, name or type(model).__name__)
        if found.forecast is None:
            raise PrunerError(f"{found.name}: {found.reason}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End its processes."""
        self._forecaster.close()


def forecast(
    model: nn.Module,
    inputs: Tensor | Sequence[Any] | Mapping[str, Any],
    *,
    platform: str = "cpu",
    options: Sequence[str] = (),
) -> NetworkForecast:
    """Forecast a single module; see `Forecaster`, which is faster for several."""
    with Forecaster(platform, options=options) as forecaster:
        return forecaster(model, inputs)
