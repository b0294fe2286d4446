"""The state of a run on disk: what a resumed run needs to go on exactly."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pruner.errors import DataError

SNAPSHOT_FILE = "state.pkl"


class Snapshots:
    """Pickles in which long-lived objects stand by name.

    ``fixed`` are the objects that a resumed run builds anew (design spaces, stopwatch): TVM's own
    objects cannot be pickled, and need not be. It may grow, and ``find`` makes what is not there
    yet, None for another run's. Generators and models that several searches share stay shared.
    """

    def __init__(
        self,
        path: Path,
        fixed: Mapping[str, object],
        find: Callable[[str], object | None] | None = None,
    ) -> None:
        self._path, self._fixed, self._make = path, fixed, find or fixed.get

    def save(self, state: Mapping[str, Any]) -> None:
        """Write the whole file or nothing."""
        names = {id(value): name for name, value in self._fixed.items()}
        buffer = io.BytesIO()
        pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = lambda value: names.get(id(value))  # type: ignore[method-assign]
        pickler.dump(dict(state))
        partial = self._path.with_suffix(".part")
        with partial.open("wb") as file:
            file.write(buffer.getvalue())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)

    def load(self) -> dict[str, Any] | None:
        """What `save` wrote last, None where it never did. Raises `DataError` for another run's."""
        if not self._path.is_file():
            return None
        unpickler = pickle.Unpickler(io.BytesIO(self._path.read_bytes()))
        unpickler.persistent_load = self._find  # type: ignore[method-assign]
        state: dict[str, Any] = unpickler.load()
        return state

    def _find(self, name: str) -> object:
        found = self._make(name)
        if found is None:
            raise DataError(f"{self._path}: made by a run with {name}, which this one has not")
        return found
