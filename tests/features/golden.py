"""Golden features of real records, matched row by row (rows of a program have no order)."""

import csv
import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from tests.paths import SHARED

RECORDS = SHARED / "data" / "gpu-records"
GOLDEN = SHARED / "golden" / "records"

needs_golden = pytest.mark.skipif(
    not (GOLDEN.is_dir() and RECORDS.is_dir()), reason="../shared/golden is not on this machine"
)


@dataclass(frozen=True)
class GoldenTask:
    """Sampled records of one task, and what the official code says of them."""

    workload_key: str
    fused: tuple[str, ...]
    steps: list
    expected: dict  # name -> one array per program


def tasks(every):
    """Every n-th golden task of the real records."""
    with (RECORDS / "tasks.csv").open() as text:
        listed = list(csv.DictReader(text))[::every]
    return [(row["platform"], row["file"], row["fused"]) for row in listed]


def load(platform, file, fused):
    stem = Path(file).name.removesuffix(".json.gz")
    stored = np.load(GOLDEN / f"{platform}__{stem}.npz")
    lines = sorted({int(name.split(".")[0]) for name in stored.files})
    with gzip.open(RECORDS / file, "rt") as text:
        wanted = {i: json.loads(line) for i, line in enumerate(text) if i in set(lines)}
    records = [wanted[i] for i in lines]
    return GoldenTask(
        workload_key=records[0]["i"][0][0],
        fused=tuple(name for name in fused.split("_") if name),
        steps=[record["i"][1][1] for record in records],
        expected={
            kind: [stored[f"{i}.{kind}"] for i in lines]
            for kind in ("statement", "dataflow", "psa")
        },
    )


def aligned(ours, expected):
    """Our rows in the order of the expected ones (best assignment)."""
    assert ours.shape == expected.shape
    cost = np.abs(ours[:, None] - expected[None]).clip(max=1).sum(-1)
    ours_row, expected_row = linear_sum_assignment(cost)
    return ours[ours_row[np.argsort(expected_row)]]
