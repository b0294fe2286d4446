"""Records of which one has a split of another extent than its loop has."""

import gzip
import json
from pathlib import Path

from pruner.data.root import RecordRoot
from tests.paths import REPOSITORY

TASK = "cpu-avx2/matmul_128_128_128.json"


def contradicted(folder: Path) -> RecordRoot:
    """Five records of the Ansor set; the third one's first split is of half of its loop."""
    source = REPOSITORY / "datasets/ansor/measure_records" / f"{TASK}.gz"
    lines = [json.loads(line) for line in gzip.decompress(source.read_bytes()).splitlines()[:5]]
    split = next(step for step in lines[2]["i"][1][1] if step[0] == "SP")
    split[3] //= 2
    path = folder / "measure_records" / TASK
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RecordRoot(folder)
