"""Where the project's own files lie: configuration, splits, bundled records, trained models.

``conf/``, ``datasets/`` and ``checkpoints/`` are folders of the repository. The package has a link
to each; a wheel holds the files behind the links, so the same paths are right beside the sources
and installed.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_folder() -> Path:
    """Configuration files, one folder for each group of choices."""
    return (_PACKAGE / "conf").resolve()


def datasets_folder() -> Path:
    """Frozen splits, the bundled records, requirements of Ansor's environment."""
    return (_PACKAGE / "datasets").resolve()


def checkpoints_folder() -> Path:
    """Trained models that come with the project, one file each, and a card of each."""
    return (_PACKAGE / "checkpoints").resolve()


def boxed_checkpoints() -> dict[str, Path]:
    """The trained models that come with the project, by the name that ``checkpoint=`` takes."""
    return {path.stem: path for path in sorted(checkpoints_folder().glob("*.safetensors"))}


def checkpoint_named(path: Path) -> Path:
    """The model of that name that comes with the project; a path that exists is itself."""
    return path if path.exists() else boxed_checkpoints().get(str(path), path)


def sources_folder() -> Path:
    """The folder that holds the package: the repository, or site-packages."""
    return _PACKAGE.parent
