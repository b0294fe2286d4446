"""Pruner: cost models and draft-then-verify search for tensor programs.

``optimize`` compiles a module of torch for this machine; ``load`` reads the compiled library.

The packages, and the only direction of imports between them:
``errors, arrays, files -> data -> program -> features -> models -> search -> tune -> study``
``-> cli`` (the commands). docs/library.md lists the calls for users.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pruner.cli.tuning.optimize import optimize
    from pruner.tune.deploy.loaded import Network, load

__version__ = "0.1.0"
__all__ = ["Network", "load", "optimize"]

_HOMES = {
    "Network": "tune.deploy.loaded",
    "load": "tune.deploy.loaded",
    "optimize": "cli.tuning.optimize",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: most of the package needs neither torch nor TVM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
