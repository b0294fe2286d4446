"""``pruner compare RUN RUN ...``: the results of runs in a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pruner.cli.shared.options import plain, walk
from pruner.cli.shared.output import as_table, say
from pruner.cli.shared.runs import BROKEN, CONFIG_FILE, rename_options
from pruner.errors import DataError, PrunerError
from pruner.files import load_metrics


def compare(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    folders = [Path(str(name)) for name in config.runs]
    if len(folders) < 2:
        raise PrunerError("give at least two run folders: pruner compare RUN1 RUN2")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise PrunerError("the same run folder is given twice; give different ones")
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    metrics = [_metrics(folder) for folder in folders]
    rows = _rows("result", names, metrics)
    say(as_table(rows))
    options: list[dict[str, Any]] = []
    if config.options:
        found = [_options(folder) for folder in folders]
        options = [
            row
            for row in _rows("option", names, found)
            if len({str(row[name]) for name in names}) > 1 and row["option"] != "run_id"
        ]
        say("\n" + as_table(options) if options else "\nall options are the same")
    return {"results": rows, "options": options}


def _options(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    try:
        config = OmegaConf.load(path)
        if not isinstance(config, DictConfig):
            raise ValueError("a list")
        rename_options(config)
        return {k: v for k, v in walk(plain(config)) if not isinstance(v, Mapping)}
    except BROKEN as error:
        message = " ".join(str(error).split())[:120]
        raise DataError(f"{path}: no configuration ({message}); add options=false") from error


def _metrics(folder: Path) -> dict[str, Any]:
    found = load_metrics(folder)
    if found is None:
        raise DataError(f"{folder}: no metrics.json there; name the folder of a finished run")
    if found.get("interrupted"):
        say(f"{folder}: ended early; its numbers are those so far")
    return {name: value for name, value in walk(found) if type(value) in (int, float)}


def _rows(what: str, names: list[str], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    keys = dict.fromkeys(key for values in found for key in values)
    columns = list(zip(names, found, strict=True))
    return [{what: key, **{name: values.get(key) for name, values in columns}} for key in keys]
