"""``pruner.forecast``: ``pruner predict networks=`` for a module of torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pruner.cli.shared.door import command_config
from pruner.cli.shared.known import check_idle
from pruner.cli.shared.output import quiet
from pruner.cli.tuning.optimize import evaluated
from pruner.cli.tuning.predict_networks import OF_RECORDS, forecaster_of
from pruner.errors import PrunerError
from pruner.tune.networks.filtering.forecaster import NetworkForecast

if TYPE_CHECKING:
    from torch import Tensor, nn

_OF_TABLES = ("below_ms", "candidates", "out", "outputs", "run_id")  # options of the command alone


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
