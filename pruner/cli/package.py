"""``python -m pruner.cli.package``: the project in a folder, for machines without network."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.door import run_door
from pruner.cli.shared.options import several
from pruner.cli.shared.output import say
from pruner.data.root import RecordRoot
from pruner.errors import DataError, PrunerError
from pruner.places import sources_folder
from pruner.study.package.make import UNPACK, PackageOptions, make_package
from pruner.study.package.model import SourceModel
from pruner.study.package.wheels import Target

_MB = 1_000_000


def package(config: DictConfig) -> dict[str, Any]:
    """Run the command; returns the object of the last line."""
    start = time.monotonic()
    options = _options(config)
    manifest = make_package(options, say)
    size = sum(row["bytes"] for row in manifest["parts"])
    say(f"{len(manifest['parts'])} parts, {size / _MB:.0f} MB")
    if manifest["left_out"]:
        say(f"the machine must have: {', '.join(manifest['left_out'])}")
    say(f"there: {_there(options)}")
    return {**manifest, "out": str(options.out), "seconds": round(time.monotonic() - start, 1)}


def _there(options: PackageOptions) -> str:
    """What to type on the other machine."""
    words = [f"python {options.out.name}/{UNPACK} PLACE campaign device=cuda minutes=25 out=DIR"]
    if options.model is not None:
        words.append(f"checkpoint=PLACE/data/{options.model.file}")
    return " ".join(words)


def _options(config: DictConfig) -> PackageOptions:
    if not config.out:
        raise PrunerError("out= is empty: name a new folder")
    sources = sources_folder()
    limits = None if config.constraints is None else sources / config.constraints
    if limits is not None and not limits.is_file():
        raise PrunerError(f"constraints={config.constraints}: no such file in {sources}")
    return PackageOptions(
        sources=sources,
        out=Path(config.out),
        target=Target(
            python=None if config.python is None else str(config.python),
            platform=config.platform,
        ),
        extras=several(config.extras),
        without=several(config.without),
        pure=several(config.pure),
        constraints=limits,
        data=[_named(Path(str(name))) for name in several(config.data)],
        model=_model(config),
        part_bytes=int(config.part_mb * _MB),
        most_bytes=float("inf") if config.most_mb is None else config.most_mb * _MB,
    )


def _named(path: Path) -> Path:
    """The path by the name that it has in the package, which "." and ".." do not tell."""
    return path.resolve() if path.name in ("", "..") else path


def _model(config: DictConfig) -> SourceModel | None:
    """What to train, where records are given. Raises `DataError` where there are none of it."""
    if config.model.records is None:
        return None
    try:
        root = RecordRoot(Path(config.model.records))
        root.task_files(config.model.platform)
    except DataError as error:
        raise DataError(f"model.records: {error}") from error
    return SourceModel(records=root.path, platform=config.model.platform)


def main() -> None:
    """Open the door."""
    run_door("package", package)


if __name__ == "__main__":
    main()
