"""Workload keys: what operator on which shapes a task is, and when two tasks are the same work.

A workload key is the JSON list that TVM writes: ``["conv2d_layer", 128, 64, 56, 56, ...]`` for the
operators of datasets/README.md, ``["<md5>", 1, 64, ...]`` for TenSet's subgraphs.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

import orjson

from pruner.data.quarantine import MalformedError, Reason
from pruner.data.steps import MAX_EXTENT

# Operators that a log may fuse behind a convolution; the workload key does not mention them.
FUSABLE = ("add", "relu")
_CHAIN = rf"((?:_(?:{'|'.join(FUSABLE)}))+)"
_OPERATOR = rf"(?!(?:{'|'.join(FUSABLE)})_)[a-z]+(?:\d+[a-z]+)*"
_FUSED_BEHIND_OPERATOR = re.compile(rf"{_OPERATOR}{_CHAIN}_\d")
_FUSED_AT_THE_END = re.compile(rf"{_OPERATOR}_\w*?{_CHAIN}$")

# Operators whose last four arguments are kernel height, kernel width, stride and padding.
_WINDOWED = ("conv2d_layer", "depthwise_conv2d_layer", "pool_layer")
_MAX_NAME = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A parsed workload key: `op` as written (``"conv2d_layer"``) and its arguments."""

    op: str
    args: tuple[Any, ...]

    @property
    def short_op(self) -> str:
        """The operator without ``_layer``; ``"subgraph"`` where the key is a hash."""
        if re.fullmatch(r"[0-9a-f]{32}", self.op):
            return "subgraph"
        return self.op.removesuffix("_layer")

    @property
    def identity(self) -> str:
        """Canonical JSON that is equal exactly for equal work, on whatever platform it was logged.

        Paddings are compared as shapes (MI50 logs write integers where CUDA logs write SAME or
        VALID). Fused operators are not part of it: a convolution with and without its relu tiles
        alike, so a split has to keep both on one side.
        """
        args = list(self.args)
        if self.op in _WINDOWED and len(args) >= 4:
            kernel_h, kernel_w, _, padding = args[-4:]
            args[-1] = explicit_padding(padding, kernel_h, kernel_w)
        return json.dumps([self.op, *args], separators=(",", ":"))

    def file_stem(self, fused: tuple[str, ...] = ()) -> str:
        """The task name used in file names, as in ``conv2d_add_relu_128_64_56_56_...``."""
        words = [self.op.removesuffix("_layer"), *fused, *_flat(self.args)]
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "_", "_".join(words)).strip("_.")
        if len(stem) <= _MAX_NAME:
            return stem
        return f"{stem[:_MAX_NAME]}_{sha256(stem.encode()).hexdigest()[:12]}"


@lru_cache(maxsize=65536)
def parse_workload(workload_key: str) -> Workload:
    """Parse a workload key.

    Raises:
        MalformedError: not a JSON list that starts with a name, or a size beyond 2^31.
    """
    try:
        parts = orjson.loads(workload_key)
    except orjson.JSONDecodeError:
        parts = None
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str) or not parts[0]:
        raise MalformedError(Reason.BAD_FIELD, f"workload key {workload_key[:80]!r}")
    if any(abs(size) > MAX_EXTENT for size in _numbers(parts[1:])):
        raise MalformedError(Reason.ABSURD_EXTENT, f"workload key {workload_key[:80]!r}")
    return Workload(op=parts[0], args=tuple(parts[1:]))


def explicit_padding(padding: Any, kernel_h: Any, kernel_w: Any) -> Any:
    """Padding as ``[top, left, bottom, right]`` in elements; unknown spellings come back as given.

    SAME pads kernel - 1 in all, the larger half on top and left, whatever the stride (the rule of
    TVM's operator library, which defined these workloads); an integer pads that much on each side.
    """
    if padding == "SAME":
        total_h, total_w = kernel_h - 1, kernel_w - 1
        top, left = (total_h + 1) // 2, (total_w + 1) // 2
        return [top, left, total_h - top, total_w - left]
    if padding == "VALID":
        return [0, 0, 0, 0]
    if isinstance(padding, int) and not isinstance(padding, bool):
        return [padding] * 4
    if isinstance(padding, list) and len(padding) == 2:
        return [*padding, *padding]
    return padding


def fused_from_name(task: str) -> tuple[str, ...]:
    """Operators fused behind the main one, read from a task (file) name.

    ``"conv2d_add_relu_128_64_..."`` gives ``("add", "relu")``, and so does the other spelling of
    public logs, ``"ansor_conv2d_128_64_..._add_relu"``; ``"conv2d_128_64_..."`` and
    ``"relu_4096_4096"`` give ``()``.
    """
    name = task.partition(".")[0].removeprefix("ansor_")
    match = _FUSED_BEHIND_OPERATOR.match(name) or _FUSED_AT_THE_END.match(name)
    return tuple(match.group(1).strip("_").split("_")) if match else ()


def _flat(value: Any) -> list[str]:
    if isinstance(value, list | tuple):
        return [word for item in value for word in _flat(item)]
    return [str(value)]


def _numbers(value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, int | float) else []
