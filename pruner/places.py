"""Where the project's own files lie: configuration, splits and bundled records.

``conf/`` and ``datasets/`` are folders of the repository. The package has a link to each; a wheel
holds the files behind the links, so the same two paths are right beside the sources and installed.
"""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def conf_folder() -> Path:
    """Configuration files, one folder for each group of choices."""
    return (_PACKAGE / "conf").resolve()


def datasets_folder() -> Path:
    """Frozen splits, the bundled records, requirements of Ansor's environment."""
    return (_PACKAGE / "datasets").resolve()


def sources_folder() -> Path:
    """The folder that holds the package: the repository, or site-packages."""
    return _PACKAGE.parent
