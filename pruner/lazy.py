"""Import names of a package on first use, and optional libraries."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from pruner.errors import MissingExtra


def optional(library: str, extra: str) -> Any:
    """Import a library, or its module; raise `MissingExtra` where not installed."""
    top = library.partition(".")[0]
    try:
        return import_module(library)
    except ImportError as error:
        # the library of a module is installed, if something that it needs is not
        if library != top and (getattr(error, "name", None) or "").partition(".")[0] != top:
            raise
        raise MissingExtra(top, extra) from error


def on_first_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` for names by relative module in `homes`."""

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return imported
