"""``pruner get SET``: fetch a public record set by git into a data root."""

import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.output import say
from pruner.cli.shared.progress import track
from pruner.data.public import load_sources, present_files
from pruner.errors import PrunerError
from pruner.files import held

CLONES = ".sources"  # in the data root, until every file is written; after an error they stay


def get(config: DictConfig) -> dict[str, Any]:
    """Fetch a set; return the object of the last line."""
    if config.set is None or config.out is None:
        raise PrunerError("give the set and out=; use: pruner get gpu-logs out=DIR")
    start = time.monotonic()
    out, sources = Path(str(config.out)), load_sources(str(config.set))
    clones = out / CLONES
    out.mkdir(parents=True, exist_ok=True)
    with held(out):
        records = present_files(sources, out)
        kept, lacking = len(records), []
        for source in sources:
            names = [name for name in source.files if name not in records]
            say(
                f"{config.source}/{source.repository} at {source.commit[:7]}, {source.licence}: "
                f"{len(names)} files to fetch, {len(source.files) - len(names)} are there"
            )
            clone = clones / source.repository.replace("/", "+")
            if names:
                source.fetch(names, clone, str(config.source))
            lacking += [(source, clone, name) for name in names]
        for source, clone, name in track(lacking, "record files", len(lacking)):
            records[name] = source.write(name, clone, out)
        for clone in {clone for _, clone, _ in lacking}:
            shutil.rmtree(clone, ignore_errors=True)
        with suppress(OSError):  # absent, or with files of others
            clones.rmdir()
    platforms = Counter[str]()
    for name, num_records in records.items():
        platforms[name.partition("/")[0]] += num_records
    say(f"use them with data.root={out}; datasets/README.md has their cards")
    return {
        "set": str(config.set),
        "records": platforms.total(),
        "platforms": dict(platforms),
        "files": len(records),
        "kept": kept,
        "seconds": round(time.monotonic() - start, 3),
        "out": str(out),
    }
