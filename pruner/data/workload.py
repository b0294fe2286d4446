"""Parse workload keys, and compare them for equal work.

A workload key is the JSON list that TVM writes: ``["conv2d_layer", 128, 64, 56, 56, ...]`` for the
operators of :data:`ARGUMENTS`, ``["<md5>", 1, 64, ...]`` for TenSet's subgraphs.

Imported in the Ansor environment too, so all that it imports is of the standard library.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Any

from pruner.data.limits import MAX_KEY_DEPTH, MAX_TEXT_CHARS
from pruner.data.quarantine import MalformedError, Reason

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "matmul": ("m", "k", "n"),
    "batch_matmul": ("batch", "heads", "m", "k", "n"),
    "conv2d": ("n", "ci", "h", "w", "co", "kh", "kw", "stride", "padding"),
    "grouped_conv2d": ("n", "ci", "h", "w", "co", "groups", "kh", "kw", "stride", "padding"),
    "depthwise_conv2d": ("n", "c", "h", "w", "kh", "kw", "stride", "padding"),
    "pool": ("kind", "n", "c", "h", "w", "kh", "kw", "stride", "padding"),
    "softmax": ("rows", "columns"),
    "layer_norm": ("rows", "columns"),
    "reduction": ("shape", "axis", "keepdims"),
    "relu": ("*shape",),
}
"""The table of operators: the arguments of each operator's key, in order (``*``: any number).

A key is written ``["<operator>_layer", *arguments]``. An operator's computation stands in
``pruner/program/dag/operators/<operator>.py``. An argument named ``padding`` is compared as
elements, its window being ``kh`` and ``kw`` (1 where there is none): see `ParsedKey.identity`.
"""

# Operators fused behind another one, in this order; the workload key does not mention them.
FUSABLE = ("bias", "add", "relu")
_CHAIN = rf"((?:_(?:{'|'.join(FUSABLE)}))+)"
_NAMES = "|".join(sorted(ARGUMENTS, key=len, reverse=True))
_OPERATOR = rf"(?:{_NAMES}|(?!(?:{'|'.join(FUSABLE)})_)[a-z]+(?:\d+[a-z]+)*)"
_FUSED_BEHIND_OPERATOR = re.compile(rf"{_OPERATOR}{_CHAIN}(?:_avg|_max)?_\d")  # kinds of pools
_FUSED_AT_THE_END = re.compile(rf"{_OPERATOR}_\w*?{_CHAIN}$")

MAX_EXTENT = 2**31
_LAYER = "_layer"
_MAX_NAME = 150

Padding = int | str | list[int]
Amounts = tuple[int, int, int, int]  # top, left, bottom, right, in elements


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedKey:
    """A parsed workload key: `op` as written (``"conv2d_layer"``), and its arguments."""

    op: str
    args: tuple[Any, ...]

    @property
    def short_op(self) -> str:
        """Operator without ``_layer``; ``"subgraph"`` where the key is a hash."""
        if re.fullmatch(r"[0-9a-f]{32}", self.op):
            return "subgraph"
        return self.op.removesuffix(_LAYER)

    @property
    def operator(self) -> str | None:
        """Name in the table of operators; None for anything else."""
        name = self.op.removesuffix(_LAYER)
        return name if self.op.endswith(_LAYER) and name in ARGUMENTS else None

    @property
    def named(self) -> Mapping[str, Any]:
        """Arguments by name; empty for unknown operators and free arities."""
        names = ARGUMENTS[self.operator] if self.operator else ()
        return dict(zip(names, self.args, strict=True)) if len(names) == len(self.args) else {}

    @property
    def identity(self) -> str:
        """Canonical JSON, equal only for equal work on any platform, fused operators apart.

        Paddings are compared as elements (MI50 logs write integers where CUDA logs write SAME or
        VALID). Two other spellings of equal work differ: `batch_matmul` by batch and heads, of
        which the product counts, and `reduction` by axes, which may count from the end. A
        convolution with and without its relu tiles alike, so a split has to keep both on one side.
        """
        args = list(self.args)
        named = self.named
        if "padding" in named:
            place = ARGUMENTS[self.op.removesuffix(_LAYER)].index("padding")
            try:
                window = named.get("kh", 1), named.get("kw", 1)
                args[place] = list(pad_amounts(named["padding"], *window))
            except (TypeError, ValueError):  # an unknown spelling of padding stays as written
                pass
        return json.dumps([self.op, *args], separators=(",", ":"))

    def file_stem(self, fused: tuple[str, ...] = ()) -> str:
        """Return the task name for files: ``conv2d_add_relu_128_64_56_...``."""
        words = [self.op.removesuffix(_LAYER), *fused, *_flat(self.args)]
        stem = re.sub(r"[^A-Za-z0-9.+-]+", "_", "_".join(words)).strip("_.")
        if len(stem) <= _MAX_NAME:
            return stem
        return f"{stem[:_MAX_NAME]}_{sha256(stem.encode()).hexdigest()[:12]}"


def workload_key(operator: str, *args: Any) -> str:
    """Return the workload key of an operator of the table."""
    return json.dumps([operator + _LAYER, *args])


@lru_cache(maxsize=8192)
def parse_workload(workload_key: str) -> ParsedKey:
    """Parse a workload key; raises MalformedError for another form, or sizes beyond 2^31."""
    try:
        parts = json.loads(workload_key) if len(workload_key) <= MAX_TEXT_CHARS else None
    except (ValueError, RecursionError):
        parts = None
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str) or not parts[0]:
        raise MalformedError(Reason.BAD_FIELD, f"workload key {workload_key[:80]!r}")
    # The comparison is false for NaN too.
    if not all(abs(size) <= MAX_EXTENT for size in _numbers(parts[1:], MAX_KEY_DEPTH)):
        raise MalformedError(Reason.ABSURD_EXTENT, f"workload key {workload_key[:80]!r}")
    return ParsedKey(op=parts[0], args=tuple(parts[1:]))


def pad_amounts(padding: Padding, kernel_h: int, kernel_w: int) -> Amounts:
    """Return the padding (top, left, bottom, right) in elements.

    ``"SAME"`` pads kernel - 1 in all whatever the stride, the odd one on top and left; ``"VALID"``
    pads nothing; an integer, or ``[h, w]``, is padded on both sides; four integers are taken as
    they are. Source: ``get_pad_tuple`` of TVM's operator library, which defined these workloads.

    Raises:
        ValueError: another spelling.
    """
    match padding:
        case bool():
            pass
        case "VALID":
            return 0, 0, 0, 0
        case "SAME":
            bottom, right = (kernel_h - 1) // 2, (kernel_w - 1) // 2
            return kernel_h - 1 - bottom, kernel_w - 1 - right, bottom, right
        case int() if padding >= 0:
            return padding, padding, padding, padding
        case [int(h), int(w)] if min(h, w) >= 0:
            return h, w, h, w
        case [int(top), int(left), int(bottom), int(right)] if min(padding) >= 0:
            return top, left, bottom, right
    raise ValueError(f"padding must be SAME, VALID or integers >= 0, got {padding!r}")


def fused_from_name(task: str) -> tuple[str, ...]:
    """Return the fused operators, read from a task (file) name.

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


def _numbers(value: Any, depth: int) -> Iterator[float]:
    """Yield numbers of nested lists; raises `MalformedError` for an object, or beyond `depth`."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, list) and depth:
        for item in value:
            yield from _numbers(item, depth - 1)
    elif not isinstance(value, str | None):
        detail = "a workload key of operator, numbers, texts and lists of them was expected"
        raise MalformedError(Reason.BAD_FIELD, detail)
