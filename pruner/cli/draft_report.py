"""``pruner draft_report``: the draft's quality on record folders, as a table."""

import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.output import as_table, check_file, say
from pruner.cli.shared.progress import ON_STDERR
from pruner.cli.shared.records import chosen_platforms, record_root
from pruner.errors import PrunerError
from pruner.files import merged_table, write_table
from pruner.paths import conf_folder
from pruner.study.draft_quality import SHOWN, DraftTable, draft_rows, plot_draft

KEY = ("platform", "form")


def draft_report(config: DictConfig) -> dict[str, Any]:
    """Run the command; return the object of the last line."""
    start = time.perf_counter()
    root, out = record_root(config.data), Path(config.out)
    plot = config.plot
    if not (isinstance(plot, str) and plot and Path(plot).name == plot):
        raise PrunerError(f"plot={plot}: a name, such as plot.png; it lies beside out=")
    check_file("out", out)
    check_file("plot", out.with_name(plot))
    table = DraftTable(
        calibrate=config.calibrate,
        official=config.official,
        terms=config.terms,
        min_programs=config.min_programs,
        origin=config.origin,
        repeats=config.repeats,
        seed=config.seed,
    )
    merged_table(out, [], KEY)  # another table is refused before any work
    platforms = chosen_platforms(config.data, None, root)
    out.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for platform in platforms
        for row in draft_rows(root, platform, table, conf=conf_folder(), progress=ON_STDERR)
    ]
    write_table(out, merged_table(out, rows, KEY), floats=".5f")
    say(as_table([{name: row[name] for name in SHOWN} for row in rows]))
    plot_draft(out.with_name(plot), rows, config.min_programs)
    return {"rows": len(rows), "out": str(out), "seconds": time.perf_counter() - start}
