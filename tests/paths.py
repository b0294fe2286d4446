"""Folders of the source tree that tests read."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
CONF = REPOSITORY / "conf"
DATASETS = REPOSITORY / "datasets"
# Development data beside the checkout; absent on most machines.
SHARED = REPOSITORY.parent / "shared"
# What readers are sent to.
FOLDERS = ("docs", "experiments", "datasets", "benchmarks", "checkpoints", "leaderboard")
PAGES = sorted(
    page
    for folder in (".", *FOLDERS)
    for page in (REPOSITORY / folder).glob("*.md" if folder == "." else "**/*.md")
)
