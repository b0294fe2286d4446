"""Draw a frozen split from a record folder and write it beside this file.

    python datasets/splits/draw.py NAME DATA_ROOT [--seed 0] [--test 0.2] [--valid 0.1]

Existing files are never overwritten: a frozen list does not change.
"""

import argparse
import sys

from pruner.data.frozen import SPLITS_FOLDER, draw_split
from pruner.data.quarantine import Quarantine
from pruner.data.root import RecordRoot
from pruner.data.splits import TEST_SHARE, VALID_SHARE
from pruner.errors import DataError


def main() -> int:
    """Read the tasks, draw, write, and say where."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="name of the split, for example by_task")
    parser.add_argument("data_root", help="folder that holds measure_records/")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--test", type=float, default=TEST_SHARE, help="share held out")
    parser.add_argument("--valid", type=float, default=VALID_SHARE, help="share for validation")
    options = parser.parse_args()
    try:
        platforms: dict[str, set[str]] = {}
        ops: dict[str, str] = {}
        for records in RecordRoot(options.data_root).read(Quarantine()):
            identity = records.key.identity
            ops[identity] = records.key.workload.short_op
            platforms.setdefault(identity, set()).add(records.key.platform)
        split = draw_split(
            options.name,
            {identity: (ops[identity], frozenset(platforms[identity])) for identity in ops},
            seed=options.seed,
            test=options.test,
            valid=options.valid,
        )
        path = split.save(SPLITS_FOLDER)
    except DataError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sizes = f"{len(split.train)} train, {len(split.valid)} valid, {len(split.test)} test"
    sys.stdout.write(f"{path}: {sizes} workloads; {split.how}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
