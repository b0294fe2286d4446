"""Check a device behind a TVM RPC tracker before tuning begins."""

from __future__ import annotations

import socket
from typing import Any

from pruner.errors import PrunerError
from pruner.processes import Worker, preload
from pruner.tune.measure.jobs import JOBS, PRELOADED, RpcAddress

_MEMORY_BYTES = 4 << 30


def check_health(address: RpcAddress, timeout_s: float) -> dict[str, Any]:
    """Get a device of the key and move bytes there and back.

    Everything happens in a worker process: TVM's own client retries for minutes and cannot be
    interrupted.

    Returns:
        ``seconds`` of the transfer, and ``servers``, the number of devices of the key.

    Raises:
        PrunerError: no tracker, no server of this key, or none that responds in time.
    """
    where = f"runner.host={address.host} runner.port={address.port}"
    try:
        # a plain socket first: TVM's client retries a missing tracker for a minute
        socket.create_connection((address.host, address.port), timeout_s).close()
    except OSError as error:
        raise PrunerError(
            f"{where}: no tracker there ({error.strerror or error}); "
            "start one: python -m tvm.exec.rpc_tracker"
        ) from error
    preload(*PRELOADED)
    worker = Worker(JOBS, timeout_s=timeout_s, memory_bytes=_MEMORY_BYTES)
    try:
        worker.call("ready")  # the import is not the device's delay
        found = worker.call("servers", address)
        if found.error is not None:
            raise PrunerError(f"{where}: the tracker does not answer ({found.message})")
        if address.key not in found.value:
            known = ", ".join(found.value) or "none"
            raise PrunerError(
                f"runner.key={address.key}: no device of this key at the tracker; known: {known}"
            )
        reply = worker.call("health", address)
        if reply.error is not None:
            raise PrunerError(
                f"runner.key={address.key}: no free device that answers in {timeout_s:g} s "
                f"({reply.message})"
            )
        return {"seconds": reply.seconds, "servers": found.value[address.key]}
    finally:
        worker.stop()
