"""Copy a finished collection into a folder to hand on.

It has records, their design spaces, ``about.json`` and checksums; not the measurement logs and
databases, which are larger and contain the same.
"""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pruner.data.steps import TRACE
from pruner.errors import PrunerError
from pruner.files import read_json, write_checksums, write_json
from pruner.program.tir.saved import FOLDER as SPACES
from pruner.program.tir.saved import SUFFIX
from pruner.tune.pools.collector import ABOUT
from pruner.tune.pools.records import PoolPaths

_OF_ONE_HOST = ("kernel",)  # of about.json's machine: identifies a host, not its abilities


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundled:
    """Counts of copied pools, records and design spaces."""

    pools: int
    records: int
    spaces: int


def bundle(collection: Path, out: Path) -> Bundled:
    """Copy records, design spaces and ``about.json`` to `out`; add checksums.

    Raises:
        PrunerError: a pool is not finished, or `out` exists.
        DataError: ``about.json`` is damaged.
    """
    if out.exists():
        raise PrunerError(f"{out}: exists and is left alone; remove it, or name another folder")
    if not (collection / ABOUT).is_file():
        raise PrunerError(f"{collection}: no {ABOUT} in it; pruner collect makes one")
    about = read_json(collection / ABOUT, dict)
    files, spaces, count = [], set(), 0
    for entry in about["pools"]:
        path = PoolPaths(out=collection, platform=entry["platform"], task=entry["task"]).records
        records = _records(path)
        if len(records) != entry["valid"] + entry["failed"]:
            raise PrunerError(
                f"{collection}: {entry['platform']} {entry['task']} is not finished; the "
                "command that began it continues it"
            )
        files.append(path)
        spaces |= {step[1] for record in records for step in record["i"][1][1] if step[0] == TRACE}
        count += len(records)
    files += [collection / SPACES / f"{name}{SUFFIX}" for name in spaces]
    for path in files:
        copy = out / path.relative_to(collection)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    machine = {name: value for name, value in about["machine"].items() if name not in _OF_ONE_HOST}
    write_json(out / ABOUT, {**about, "machine": machine}, indent=1)
    write_checksums(out, out.rglob("*"))
    return Bundled(pools=len(about["pools"]), records=count, spaces=len(spaces))


def _records(path: Path) -> list[dict[str, Any]]:
    """Read the records of a pool; none if it is not finished."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
