"""Pruner: cost models and draft-then-verify search for tensor programs.

``optimize`` compiles a module of torch for this machine; ``load`` reads the compiled library;
``forecast`` estimates its milliseconds before anything runs.

The packages, and the only direction of imports between them:
``errors, arrays, files -> data -> program -> features -> models -> search -> tune -> study``
``-> cli`` (the commands). docs/library.md lists the calls for users.
"""

from typing import TYPE_CHECKING

from pruner.lazy import on_first_use

if TYPE_CHECKING:
    from pruner.cli.tuning.optimize import optimize
    from pruner.cli.tuning.predict_networks import Forecaster, forecast
    from pruner.tune.deploy.loaded import Network, load

__version__ = "0.1.0"
__all__ = ["Forecaster", "Network", "forecast", "load", "optimize"]

# Most of the package needs neither torch nor TVM.
__getattr__ = on_first_use(
    __name__,
    {
        "Forecaster": "cli.tuning.predict_networks",
        "Network": "tune.deploy.loaded",
        "forecast": "cli.tuning.predict_networks",
        "load": "tune.deploy.loaded",
        "optimize": "cli.tuning.optimize",
    },
)
