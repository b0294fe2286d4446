"""Write a campaign's results as small files: tables, device, records with card."""

import shutil
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.gpu.options import CampaignOptions
from experiments.gpu.state import STATE_FILE, about_device
from experiments.gpu.tables import beside_rows, curve_rows, group_rows, network_rows, operator_rows
from pruner.data.root import FOLDER as RECORDS
from pruner.files import as_written, read_json, write_atomic, write_json, write_table
from pruner.program.tir.saved import FOLDER as SPACES
from pruner.study.markdown import markdown_table
from pruner.tune.pools.records import ABOUT
from pruner.tune.run.journal import JOURNAL_FILE

CARD, ARCHIVE = "README.md", "campaign.tar.gz"
# Of the folder of a campaign: what its tables are made from, without libraries and models.
_KEPT = (
    "*.json", "*.jsonl", "kept/*.json", "logs/*.log", "**/tune/*/*.json", "**/tune/*/*.jsonl",
    "**/tune/*/*.yaml", "pools/about.json", "pools/pools/*/*.jsonl",
)  # fmt: skip
TABLES = {
    "operators": operator_rows,
    "groups": group_rows,
    "networks": network_rows,
    "curves": curve_rows,
    "beside": beside_rows,
}


def write_results(options: CampaignOptions, folder: Path) -> dict[str, int]:
    """Write the results so far into `folder`; returns the rows by table.

    ``operators.csv``, ``groups.csv``, ``networks.csv``, ``curves.csv`` and ``beside.csv``
    (`experiments.gpu.tables`), ``device.json``, and ``records/``: finished pools as a data root
    with a card. ``campaign.tar.gz`` is all of it in one file, with the journals and logs of the
    runs, so that the tables can be made anew elsewhere.
    """
    counts = {}
    for name, rows_of in TABLES.items():
        rows = rows_of(options)
        counts[name] = len(rows)
        table = folder / f"{name}.csv"
        if rows:
            write_table(table, rows, floats=".6g")
        else:  # the book reads all tables, or none
            table.parent.mkdir(parents=True, exist_ok=True)
            table.write_text("table\n", encoding="utf-8")
    about = about_device(options.out)
    if about:
        write_json(folder / STATE_FILE, about, indent=1)
    counts["records"] = _write_records(options, folder / "records", about)
    if counts["records"] or any(options.out.rglob(JOURNAL_FILE)):
        _write_archive(options, folder)
    return counts


def compiled_counts(options: CampaignOptions) -> dict[str, int]:
    """Count the compiled programs of operators and networks: done and failed."""
    networks = {(row["network"], row["precision"]): row for row in network_rows(options)}
    rows = [*group_rows(options), *networks.values()]
    return {name: sum(row[name] for row in rows) for name in ("compiled", "failed")}


def _write_archive(options: CampaignOptions, folder: Path) -> None:
    found = [path for name in _KEPT for path in sorted(options.out.glob(name)) if path.is_file()]
    tables = [folder / f"{name}.csv" for name in TABLES]  # what else the folder has is not ours
    made = [*tables, folder / STATE_FILE, *sorted((folder / "records").rglob("*"))]
    with write_atomic(folder / ARCHIVE) as partial, tarfile.open(partial, "w:gz") as archive:
        for path in found:
            archive.add(path, arcname=str(path.relative_to(options.out)))
        for path in filter(Path.is_file, made):
            archive.add(path, arcname=f"results/{path.relative_to(folder)}")


def _write_records(options: CampaignOptions, folder: Path, device: Mapping[str, Any]) -> int:
    """Copy the finished pools; how many of their programs ran."""
    source = options.pools
    if not (source / RECORDS).is_dir() or not (source / ABOUT).is_file():
        return 0
    for name in (RECORDS, SPACES):
        shutil.copytree(source / name, folder / name, dirs_exist_ok=True)
    written = {path.name.partition(".")[0] for path in (folder / RECORDS).rglob("*.json.gz")}
    with as_written(source / ABOUT):
        about = read_json(source / ABOUT, dict)
        pools = [pool for pool in about["pools"] if pool["task"] in written]
        text = card(options, about, pools, device)
    (folder / CARD).write_text(text, encoding="utf-8")
    return sum(pool["valid"] for pool in pools)


def card(
    options: CampaignOptions,
    about: Mapping[str, Any],
    pools: Sequence[Mapping[str, Any]],
    device: Mapping[str, Any],
) -> str:
    """A description of the records, for finders of the folder."""
    gpus = ", ".join(gpu["name"] for gpu in device.get("gpus", []))
    what = gpus or str(about["machine"].get("processor"))
    days = sorted(pool["first"] for pool in pools)
    lines = [
        f"# Pools of {options.platform}",
        "",
        f"{sum(p['valid'] for p in pools)} programs of {len(pools)} tasks on {what}, drawn evenly "
        "from MetaSchedule's design spaces and timed at least twice (docs/pools.md). Record files "
        "are in TenSet's layout; train.py and evaluate.py take the folder as data.root=.",
        "",
        f"* measured: {days[0] if days else '-'} to {max((p['last'] for p in pools), default='-')}"
        " (UTC)",
        f"* target: `{about['targets'].get(options.platform, '-')}`",
        f"* machine: {', '.join(f'{k} {v}' for k, v in about['machine'].items())}",
        f"* timing: {about['timing']}",
        "",
    ]
    head = ["task", "ran", "failed", "not checked", "timings"]
    head.append("how far its first two timings differ, median")
    rows = []
    for pool in pools:
        apart = pool["spread_median"]
        unchecked = pool.get("unchecked", "not known")  # of versions that did not write it
        cells = [pool["task"], pool["valid"], pool["failed"], unchecked, pool["timings"]]
        rows.append([*cells, "-" if apart is None else f"{apart:.3f}"])
    return "\n".join([*lines, markdown_table(head, rows), ""])
