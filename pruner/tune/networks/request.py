"""What a network's tasks are made from, kept beside them: equal requests give equal functions.

Extraction and build read the same request and call the same function, :func:`lowered_network`: only
then do records of the one apply in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pruner.files import as_written, read_json, write_json
from pruner.tune.networks.lowering import NetworkForm, lower
from pruner.tune.networks.source import NetworkSource, import_network
from pruner.tune.tvm_import import load_tvm

REQUEST = "network.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """A network, what it is lowered for, and how; ``target`` in TVM's words."""

    source: NetworkSource
    target: Mapping[str, Any]
    form: NetworkForm = field(default_factory=NetworkForm)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        write_json(path, asdict(self), indent=1)

    @staticmethod
    def read(path: Path) -> NetworkRequest:
        """What `save` wrote. Raises `DataError` where the file is damaged."""
        with as_written(path):
            asked = read_json(path, dict)
            return NetworkRequest(
                source=NetworkSource.read(asked["source"]),
                target=dict(asked["target"]),
                form=NetworkForm(**asked["form"]),
            )

    def tvm_target(self) -> Any:
        """The target as TVM takes it."""
        return load_tvm().tvm.target.Target(dict(self.target))


def lowered_network(request: NetworkRequest) -> Any:
    """The network imported and lowered, for extraction and for build.

    Raises:
        PrunerError: it cannot be imported, in one line.
    """
    return lower(import_network(request.source), request.tvm_target(), request.form)
