"""Reads an offline run back: a LevelDB log (32 KiB blocks) of protocol buffers behind 7 bytes.

W&B's own reader is part of its compiled core and has no Python interface.
"""

import json
import struct
import time

from wandb.proto import wandb_internal_pb2

BLOCK, HEADER = 32768, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


def records(path):
    data = path.read_bytes()
    assert data[:4] == b":W&B", data[:8]
    place, parts = HEADER, []
    while place + HEADER <= len(data):
        left = BLOCK - place % BLOCK
        if left < HEADER:  # the rest of a block that is too short for a header
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        if place + HEADER + length > len(data):  # still being written
            return
        parts.append(data[place + HEADER : place + HEADER + length])
        place += HEADER + length
        if kind in (FULL, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def ended(path, within_s=60.0):
    """The records of a run that has ended, as soon as its end is in the file.

    `wandb.finish` only tells W&B's service to close the file and does not wait for it. Until then
    the file lacks its last block, which of a small run is all but the first seven bytes.
    """
    until = time.monotonic() + within_s
    while True:
        found = list(records(path))
        kinds = [record.WhichOneof("record_type") for record in found]
        if "exit" in kinds:
            return found
        assert time.monotonic() < until, f"{path} has no end after {within_s:g} s, only {kinds}"
        time.sleep(0.01)


def contents(path):
    """What a reader of an ended run would see: config, history rows, summary, artifacts, run."""
    found = {"config": {}, "history": [], "summary": {}, "artifacts": [], "run": None}
    for record in ended(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found["run"] = record.run
            found["config"] |= items(record.run.config.update)
        elif kind == "config":
            found["config"] |= items(record.config.update)
        elif kind == "history":
            found["history"].append(items(record.history.item))
        elif kind == "summary":
            found["summary"] |= items(record.summary.update)
        elif kind == "artifact":
            found["artifacts"].append(record.artifact)
    return found


def items(updates):
    return {
        "/".join(item.nested_key) if item.nested_key else item.key: json.loads(item.value_json)
        for item in updates
    }
