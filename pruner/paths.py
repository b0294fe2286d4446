"""Paths of the project's files: folders of the repository, or inside a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_folder() -> Path:
    """Return the folder of configuration files, a subfolder per group."""
    return (_PACKAGE / "conf").resolve()


def datasets_folder() -> Path:
    """Return the folder of frozen splits, bundled records and requirements."""
    return (_PACKAGE / "datasets").resolve()


def checkpoints_folder() -> Path:
    """Return the folder of bundled trained models, with their cards."""
    return (_PACKAGE / "checkpoints").resolve()


def boxed_checkpoints() -> dict[str, Path]:
    """Map the names of bundled models (``checkpoint=``) to their files."""
    return {path.stem: path for path in sorted(checkpoints_folder().glob("*.safetensors"))}


def checkpoint_named(path: Path) -> Path:
    """Return the bundled model of that name, or an existing path."""
    return path if path.exists() else boxed_checkpoints().get(str(path), path)


def sources_folder() -> Path:
    """Return the folder above the package: the repository, or site-packages."""
    return _PACKAGE.parent
