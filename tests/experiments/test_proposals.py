"""The pages about the proposals have the numbers of the tables that the script wrote."""

import re

import pytest

from pruner.files import read_table
from tests.paths import REPOSITORY

FOLDER = REPOSITORY / "experiments" / "proposals"
DEVICES = {"CPU": "cpu", "H200": "h200", "PoCL": "opencl-pocl"}


def shown(value):
    return f"{float(value):.3f}".removeprefix("0")


SUMMARY = {
    (row["device"], row["k"], row["method"]): row for row in read_table(FOLDER / "summary.csv")
}
README = (FOLDER / "README.md").read_text(encoding="utf-8")
CARD = (REPOSITORY / "checkpoints" / "proposals.md").read_text(encoding="utf-8")


def test_the_table_of_the_readme_is_the_summary():
    lines = re.findall(r"^\| (CPU|H200|PoCL), .*k = (\d+) \| (.*) \|$", README, re.MULTILINE)
    assert len(lines) == 8
    for device, k, rest in lines:
        lm, _, *others = (cell.strip() for cell in rest.split(" | "))
        row = SUMMARY[DEVICES[device], k, "lm"]
        assert lm == f"{shown(row['ratio'])} ± {shown(row['spread'])}"
        for cell, method in zip(
            others, ("draft", "random", "draft_of_lm", "draft_of_random"), strict=True
        ):
            found = SUMMARY.get((DEVICES[device], k, method))
            assert cell == ("" if found is None else shown(found["ratio"]))


@pytest.mark.parametrize("device", DEVICES)
def test_the_card_has_the_same_numbers(device):
    (line,) = re.findall(rf"^\| {device}, .*$", CARD, re.MULTILINE)
    for method, cell in zip(("lm", "draft", "random"), line.split("|")[2:5], strict=True):
        wanted = [
            shown(SUMMARY[DEVICES[device], k, method]["ratio"])
            for k in ("1", "8", "64")
            if (DEVICES[device], k, method) in SUMMARY
        ]
        assert cell.strip() == ", ".join(wanted)


def test_the_card_describes_the_stored_fit():
    (fit,) = [row for row in read_table(FOLDER / "fits.csv") if row["stored"] == "True"]
    for name in ("parameters", "train_programs"):
        assert f"{int(fit[name]):,}" in CARD
    assert f"{fit['train_tasks']} tasks" in CARD
    assert all(float(fit["valid_loss"]) <= float(row["valid_loss"])
               for row in read_table(FOLDER / "fits.csv"))  # fmt: skip
