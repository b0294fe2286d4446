"""Sweeps (``-m``): every cell writes its result, then a table follows.

A cell that fails is one line; the others continue. Cells share only the sweep's folder, since they
may run in other processes or on other machines.
"""

import sys
import traceback
from itertools import takewhile
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig

from pruner.cli.shared.output import (
    UNSUCCESSFUL,
    UNSUCCESSFUL_CODE,
    as_table,
    print_result,
    say,
)
from pruner.errors import PrunerError
from pruner.files import jsonable, load_metrics, save_metrics, write_table

TABLE = "results.csv"
SHOWN = ("top1", "top5", "pairwise_accuracy", "best_latency_s", "failed", "seconds", "error")


def sweep_name() -> str | None:
    """Return the folder name of this process's sweep, if any."""
    hydra = HydraConfig.get()
    return Path(hydra.sweep.dir).name if hydra.mode == RunMode.MULTIRUN else None


def run_cell(task: Any, config: DictConfig) -> None:
    """Run a cell, its number in `run_id`; write its result or error."""
    hydra = HydraConfig.get()
    if config.get("run_id"):
        config.run_id = f"{config.run_id}-{hydra.job.num}"
    choices = [word.lstrip("+") for word in hydra.overrides.task]
    cell: dict[str, Any] = {"cell": hydra.job.num, "overrides": choices}
    title = f"cell {hydra.job.num} ({' '.join(choices)})"
    say(f"{title} starts")
    try:
        result = task(config)
    except (PrunerError, OSError) as error:
        cell["error"] = str(error)
    except Exception as error:  # a bug of one cell must not end the others
        say(traceback.format_exc())
        cell["error"] = f"{type(error).__name__}: {error}"
    else:
        found = jsonable(result)
        cell |= {k: v for k, v in found.items() if isinstance(v, str | int | float | bool)}
        if result.get(UNSUCCESSFUL):
            cell[UNSUCCESSFUL] = len(result[UNSUCCESSFUL])
    say(f"{title}: {'error: ' + cell['error'] if 'error' in cell else cell.get('run_dir', 'done')}")
    save_metrics(Path(hydra.runtime.output_dir), cell)


class Gather(Callback):
    """Collects the cells of a sweep into tables and a last line."""

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Gather; an error ends the process, since Hydra would make it a warning."""
        from pruner.cli.shared.door import mistakes_in_one_line  # the door imports this file

        with mistakes_in_one_line():
            try:
                self._gather(Path(config.hydra.sweep.dir))
            except (PrunerError, OSError):
                raise
            except Exception:  # a bug
                say(traceback.format_exc())
                sys.exit(1)

    def _gather(self, folder: Path) -> None:
        found = [load_metrics(path.parent) for path in folder.glob("*/metrics.json")]
        cells = sorted((cell for cell in found if cell), key=lambda cell: cell["cell"])
        failed = [cell for cell in cells if "error" in cell]
        rows = table_of(cells)
        write_table(folder / TABLE, rows)
        shown = []
        for row in rows:
            names = ("cell", *takewhile("cell".__ne__, row), *SHOWN)  # choices come before it
            shown.append({name: row[name] for name in names if name in row})
        say(as_table(shown))
        result = {"sweep_dir": str(folder), "failed": len(failed), "cells": cells}
        save_metrics(folder, result)
        print_result(result)
        if failed:
            say(f"error: {len(failed)} of {len(cells)} cells failed; the others are in {folder}")
            sys.exit(2)
        if any(UNSUCCESSFUL in cell for cell in cells):
            sys.exit(UNSUCCESSFUL_CODE)


def table_of(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Make a row a cell: its choices, then its numbers."""
    rows = []
    for cell in cells:
        parts = (choice.lstrip("+~").partition("=") for choice in cell["overrides"])  # ~NAME: no =
        choices = {name: value for name, _, value in parts}
        rows.append(choices | {k: v for k, v in cell.items() if k not in ("overrides", *choices)})
    return rows
