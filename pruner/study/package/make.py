"""A folder that takes the project to a machine without network."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pruner.errors import PrunerError
from pruner.files import write_json
from pruner.progress import Tell
from pruner.study.package import unpack
from pruner.study.package.model import SourceModel, train_model
from pruner.study.package.parts import write_parts
from pruner.study.package.wheels import Target, gather

UNPACK = "unpack.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageOptions:
    """What a package holds.

    ``sources``: the checkout. ``without`` and ``pure``: see
    `pruner.study.package.wheels.gather`. ``data``: files and folders that travel along, in
    ``data/``, and so does ``model``, which is trained first.
    """

    sources: Path
    out: Path
    target: Target = field(default_factory=Target)
    extras: Sequence[str] = ()
    without: Sequence[str] = ()
    pure: Sequence[str] = ()
    constraints: Path | None = None
    data: Sequence[Path] = ()
    model: SourceModel | None = None
    part_bytes: int = 58_000_000
    most_bytes: float = float("inf")


def make_package(options: PackageOptions, tell: Tell) -> dict[str, Any]:
    """Write the parts, what unpacks them and ``package.json`` into ``options.out``; its content.

    Raises:
        PrunerError: the folder is not empty, two things to pack have one name, one is missing or
            has links that lead elsewhere, all is too large, or see
            :func:`pruner.study.package.wheels.gather` and
            :func:`pruner.study.package.model.train_model`.
    """
    out = options.out
    if out.exists() and any(out.iterdir()):
        raise PrunerError(f"out={out}: there is something in it; name a new folder")
    names = [path.name for path in options.data]
    names += [options.model.file] if options.model is not None else []
    for path in options.data:
        if not path.exists() or names.count(path.name) > 1:
            reason = "there twice" if path.exists() else "not there"
            raise PrunerError(f"data={path}: {path.name} is {reason}")
        _check_links(path)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        contents = {f"data/{path.name}": path.resolve() for path in options.data}
        if options.model is not None:
            trained = train_model(options.model, Path(place) / "model", options.sources, tell)
            contents[f"data/{options.model.file}"] = trained
        wheels = Path(place) / "wheels"
        left_out = gather(
            options.sources,
            wheels,
            target=options.target,
            extras=options.extras,
            without=options.without,
            pure=options.pure,
            constraints=options.constraints,
            tell=tell,
        )
        tell("writing parts")
        contents = {"wheels": wheels, **contents}
        parts = write_parts(
            out, contents, part_bytes=options.part_bytes, most_bytes=options.most_bytes
        )
        packages = sorted(path.name for path in wheels.iterdir())
    manifest = {
        "python": options.target.python or f"{sys.version_info[0]}.{sys.version_info[1]}",
        "platform": options.target.platform,
        "left_out": left_out,
        "wheels": packages,
        "data": sorted(names),
        "parts": parts,
    }
    shutil.copy(unpack.__file__, out / UNPACK)
    write_json(out / unpack.MANIFEST, manifest, indent=1)  # last: with it the package is whole
    return manifest


def _check_links(path: Path) -> None:
    """Raise `PrunerError` for a link that would point to nothing there: `unpack` refuses those."""
    whole = path.resolve()
    for link in filter(Path.is_symlink, whole.rglob("*")):
        lost = link.readlink().is_absolute() or not link.exists()  # a loop exists nowhere either
        if lost or not link.resolve().is_relative_to(whole):
            raise PrunerError(
                f"data={path}: {link} is a link to {link.readlink()}, which would not be there; "
                "put the file itself in its place"
            )
