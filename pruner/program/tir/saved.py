"""Save design spaces as JSON, to replay MetaSchedule's records without TVM.

A record holds a space's name and decisions; the space itself stands once, in
``<root>/design_spaces/<name>.json.gz``: the function before it is scheduled (buffers, loops, blocks
of one store) and the instructions of the trace. The name is a digest of the content, in letters, so
a space that several platforms share is one file. Fields of the object:

* ``trace``: the trace in TVM's own words, for people; nothing reads it
* ``text``: the computation, a line a tensor, from which workload flags are taken
* ``is_gpu``: which postprocessors follow; ``num_slots``: decisions of a program
* ``buffers``: ``[name, dtype, shape, scope, is parameter, is dynamic]``
* ``body``: ``{"loop": [name, extent], "body": [...]}`` and ``{"block": ...}``, outermost first;
  iterators are bound to the n-th loop of the function, to the n-th ``inner`` loop of the block, or
  to a number
* ``instructions``: ``[kind, inputs, attributes, numbers of the results, slot of the decision]``; an
  input ``{"r": n}`` is result n of an earlier one
* ``known``: results of instructions that are applied already, as places among loops and blocks

Expressions are lists: ``["add", a, b, dtype]``, ``["load", buffer, [indices], dtype]`` and so on.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args

from pruner.data.limits import MAX_DECISIONS
from pruner.data.workload import MAX_EXTENT
from pruner.errors import UnsupportedProgram
from pruner.files import write_atomic
from pruner.program.dag.expr import (
    Axis,
    Binary,
    BinaryOp,
    Call,
    Cast,
    Const,
    Expr,
    Load,
    Not,
    Select,
)
from pruner.program.index import affine as af
from pruner.program.index.affine import LoopVar
from pruner.program.nests import Buffer, Scope
from pruner.program.tir.trace import Instruction, Ref, TraceProgram
from pruner.program.tir.tree import Binding, Block, BlockIter, LoopNode, Tree, TreeNode

FOLDER = "design_spaces"
SUFFIX = ".json.gz"
VERSION = 1
# A name in letters cannot be mistaken for a path or a number in a log.
_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
_BINARY = frozenset(get_args(BinaryOp))
_MAX_BYTES = 1 << 24  # a space has kilobytes
# Instructions search the loops and blocks: hundreds of each are many, and the work their product.
_MAX_NODES = 2048
_MAX_INSTRUCTIONS = 4096


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SavedSpace:
    """A design space: its program with open decisions, and its text (also TVM's)."""

    program: TraceProgram
    text: str
    trace: tuple[str, ...] = ()

    @property
    def content(self) -> bytes:
        """JSON text as bytes; raise `UnsupportedProgram` for values without a form."""
        program = self.program
        loops = {loop.var: n for n, loop in enumerate(program.tree.loops())}
        value = {
            "v": VERSION,
            "trace": list(self.trace),
            "text": self.text,
            "is_gpu": program.is_gpu,
            "num_slots": program.num_slots,
            "annotations": _kept(program.tree.annotations),
            "buffers": [
                [b.name, b.dtype, [*map(int, b.shape)], b.scope.value, b.is_param, b.is_dynamic]
                for b in program.tree.buffers
            ],
            "body": [_node(node, loops) for node in program.tree.root.body],
            "instructions": [
                [i.kind, _plain(i.inputs), _plain(i.attrs), list(i.outputs), i.slot]
                for i in program.instructions
            ],
            "known": sorted([number, place] for number, place in program.known.items()),
        }
        return json.dumps(value, separators=(",", ":")).encode()

    @property
    def structure(self) -> bytes:
        """Key that is equal where spaces differ in annotated numbers alone."""
        return replace(self, program=self.program.with_open_numbers(), text="", trace=()).content

    @property
    def name(self) -> str:
        """Name of 16 letters: 64 bits of the content."""
        return _name_of(self.content)

    def save(self, folder: Path) -> str:
        """Write the space into a folder unless present; return its name."""
        content = self.content
        name = _name_of(content)
        path = folder / f"{name}{SUFFIX}"
        if not path.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            with write_atomic(path) as partial:
                # mtime=0: equal spaces give equal files, byte by byte.
                partial.write_bytes(gzip.compress(content, mtime=0))
        return name


def _name_of(content: bytes) -> str:
    return blake2b(content, digest_size=8).hexdigest().translate(_LETTERS)


def load_space(path: Path, name: str | None = None) -> SavedSpace:
    """Read a space that `SavedSpace.save` wrote, checking its ``name`` if given.

    Raises `UnsupportedProgram`: ``unknown-design-space`` or ``bad-design-space``.
    """
    try:
        with gzip.open(path) as file:
            # One byte more than allowed: enough to refuse a bomb without unpacking all of it.
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise UnsupportedProgram("unknown-design-space", f"no file {path}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UnsupportedProgram("bad-design-space", f"{path}: {error}") from error
    if len(content) > _MAX_BYTES:  # the file may unpack to more than it should
        raise UnsupportedProgram("bad-design-space", f"{path}: more than {_MAX_BYTES} bytes")
    if name is not None and _name_of(content) != name:
        raise UnsupportedProgram("bad-design-space", f"{path}: its name is not its hash")
    try:
        return _read(json.loads(content))
    except (MemoryError, UnsupportedProgram):
        raise
    except Exception as error:  # a damaged file may raise any error
        detail = f"{path}: {type(error).__name__} {error}"
        raise UnsupportedProgram("bad-design-space", detail[:300]) from error


class SpaceFolder:
    """The design spaces beside records, by name; each is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._spaces: dict[str, SavedSpace | UnsupportedProgram] = {}

    def space(self, name: str) -> SavedSpace:
        """Return the space of a name; raise `UnsupportedProgram` as `load_space`."""
        if name not in self._spaces:
            # A failure is kept, too: thousands of records may name the same missing space.
            try:
                if not name.isalpha():  # a name, not a path
                    raise UnsupportedProgram("unknown-design-space", repr(name)[:80])
                self._spaces[name] = load_space(self.folder / f"{name}{SUFFIX}", name)
            except UnsupportedProgram as error:
                self._spaces[name] = error
        found = self._spaces[name]
        if isinstance(found, UnsupportedProgram):
            raise found.with_traceback(None)  # raised many times, it would keep every caller
        return found


def _kept(annotations: Mapping[str, object]) -> dict[str, object]:
    """Return annotations with a plain value; the engine reads no others."""
    return {k: v for k, v in annotations.items() if isinstance(v, bool | int | float)} | {
        k: str(v) for k, v in annotations.items() if isinstance(v, str)
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Ref):
        return {"r": value.number}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise UnsupportedProgram("unsaved-value", f"{type(value).__name__} {value!s:.80}")


def _opened(value: Any) -> Any:
    if isinstance(value, dict):
        return Ref(int(value["r"]))
    return tuple(map(_opened, value)) if isinstance(value, list) else value


def _node(node: TreeNode, loops: Mapping[LoopVar, int]) -> dict[str, Any]:
    if isinstance(node, LoopNode):
        return {
            "loop": [node.var.name, int(node.extent)],
            "body": [_node(child, loops) for child in node.body],
        }
    inner = {var: number for number, var in enumerate(node.inner)}

    def bound(binding: Binding) -> list[Any]:
        base = int(binding.value.base)
        match list(binding.uses.items()):
            case []:
                return ["const", base]
            # Before any instruction, iterators are plain loops: no other form is ever saved.
            case [(var, 1)] if not base:
                return ["inner", inner[var]] if var in inner else ["loop", loops[var]]
        raise UnsupportedProgram("unsaved-value", f"{node.name}: an iterator that is no loop")

    return {
        "block": node.name,
        "iters": [[it.kind, int(it.extent)] for it in node.iters],
        "bindings": [bound(binding) for binding in node.bindings],
        "buffer": node.buffer,
        "indices": [_expr(index) for index in node.indices],
        "value": _expr(node.value),
        "init": None if node.init is None else _expr(node.init),
        "reads": list(node.reads),
        "annotations": _kept(node.annotations),
        "inner": [[var.name, int(var.extent)] for var in node.inner],
    }


def _expr(expr: Expr) -> list[Any]:
    match expr:
        case Const(value=int() | float() as value, dtype=dtype):
            return ["const", value, dtype]
        case Axis(slot=slot, dtype=dtype):
            return ["axis", slot, dtype]
        case Binary(op=op, a=a, b=b, dtype=dtype):
            return [op, _expr(a), _expr(b), dtype]
        case Not(a=a):
            return ["not", _expr(a)]
        case Select(cond=cond, then=then, other=other, dtype=dtype):
            return ["select", _expr(cond), _expr(then), _expr(other), dtype]
        case Call(name=name, args=args, dtype=dtype, pure=pure):
            return ["call", name, [_expr(arg) for arg in args], dtype, pure]
        case Cast(a=a, dtype=dtype):
            return ["cast", _expr(a), dtype]
        case Load(stage=stage, indices=indices, dtype=dtype):
            return ["load", stage, [_expr(index) for index in indices], dtype]
    raise UnsupportedProgram("unsaved-value", f"{type(expr).__name__}")


def _open_expr(value: list[Any]) -> Expr:
    match value:
        case ["const", int() | float() as number, str(dtype)]:
            return Const(number, dtype)
        case ["axis", int(slot), str(dtype)] if slot >= 0:
            return Axis(slot, dtype)
        case ["not", a]:
            return Not(_open_expr(a))
        case ["select", cond, then, other, str(dtype)]:
            return Select(_open_expr(cond), _open_expr(then), _open_expr(other), dtype)
        case ["call", str(name), list(args), str(dtype), bool(pure)]:
            return Call(name, tuple(map(_open_expr, args)), dtype, pure)
        case ["cast", a, str(dtype)]:
            return Cast(_open_expr(a), dtype)
        case ["load", int(stage), list(indices), str(dtype)] if stage >= 0:
            return Load(stage, tuple(map(_open_expr, indices)), dtype)
        case [str(op), a, b, str(dtype)] if op in _BINARY:
            return Binary(op, _open_expr(a), _open_expr(b), dtype)  # type: ignore[arg-type]
    raise UnsupportedProgram("bad-design-space", f"expression {value!r:.80}")


def _read(value: Mapping[str, Any]) -> SavedSpace:
    if value["v"] != VERSION:
        raise UnsupportedProgram("bad-design-space", f"format {value['v']}, known: {VERSION}")
    buffers = [
        Buffer(number, name, dtype, tuple(map(_extent, shape)), Scope(scope), param, dynamic)
        for number, (name, dtype, shape, scope, param, dynamic) in enumerate(value["buffers"])
    ]
    tree = Tree(buffers, LoopNode(LoopVar("root")), annotations=dict(value["annotations"]))
    loops: list[LoopVar] = []
    _add(tree.root, value["body"], loops)
    _at_most(sum(1 for _ in tree.nodes()), _MAX_NODES, "loops and blocks")
    _at_most(len(value["instructions"]), _MAX_INSTRUCTIONS, "instructions")
    num_slots = _at_most(_number(value["num_slots"]), MAX_DECISIONS, "decisions")
    instructions = tuple(
        Instruction(str(kind), _opened(inputs), _opened(attrs), tuple(outputs), _number(slot, -1))
        for kind, inputs, attrs, outputs, slot in value["instructions"]
    )
    known = {_number(number): _number(place) for number, place in value["known"]}
    program = TraceProgram(tree, instructions, num_slots, bool(value["is_gpu"]), known)
    return SavedSpace(program=program, text=str(value["text"]), trace=tuple(value["trace"]))


def _number(value: Any, least: int = 0) -> int:
    """Return a place among others; refuse negative numbers, which count from the end."""
    if type(value) is not int or value < least:
        raise UnsupportedProgram("bad-design-space", f"{value!r:.80} instead of a number")
    return value


def _extent(value: Any) -> int:
    return _at_most(_number(value), MAX_EXTENT, "iterations or elements")


def _at_most(value: int, limit: int, what: str) -> int:
    if value > limit:
        raise UnsupportedProgram("bad-design-space", f"{value} {what}, more than {limit}")
    return value


def _add(parent: LoopNode, body: list[Mapping[str, Any]], loops: list[LoopVar]) -> None:
    for node in body:
        if "loop" in node:
            name, extent = node["loop"]
            made = LoopNode(LoopVar(name, _extent(extent)), parent=parent)
            loops.append(made.var)
            parent.body.append(made)
            _add(made, node["body"], loops)
        else:
            parent.body.append(_block(node, parent, loops))


def _block(node: Mapping[str, Any], parent: LoopNode, loops: list[LoopVar]) -> Block:
    inner = tuple(LoopVar(name, _extent(extent)) for name, extent in node["inner"])

    def binding(kind: str, number: int) -> Binding:
        if kind == "const":
            return Binding(af.const(int(number)), {})
        return Binding.of({"loop": loops, "inner": inner}[kind][_number(number)])

    return Block(
        name=node["block"],
        iters=tuple(BlockIter(kind, _extent(extent)) for kind, extent in node["iters"]),
        bindings=[binding(*bound) for bound in node["bindings"]],
        buffer=_number(node["buffer"]),
        indices=tuple(map(_open_expr, node["indices"])),
        value=_open_expr(node["value"]),
        init=None if node["init"] is None else _open_expr(node["init"]),
        reads=[_number(buffer) for buffer in node["reads"]],
        annotations=dict(node["annotations"]),
        parent=parent,
        inner=inner,
    )
