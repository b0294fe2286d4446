"""Files of ``torch.export.save``, from this machine or another.

A program that was exported on a GPU has this device in its weights, example inputs and operators,
and a program with classes has their names. Here all tensors are those of the CPU, and a class that
is not registered in this process becomes one with the same parts.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import Any

import numpy as np

from pruner.errors import PrunerError, lines_of
from pruner.tune.measure.numerics import inputs as seeded
from pruner.tune.networks.plain import Arguments, replaced
from pruner.tune.networks.sizes import NetworkOptions, fixed_shapes

log = logging.getLogger(__name__)

# Where torch reads devices; a newer version has both, an older version the first.
_READERS = ("torch._export.serde.serialize", "torch.export.pt2_archive._package")


def opened(path: Path, network: str, options: NetworkOptions) -> Any:
    """Read a ``.pt2`` file as a program with fixed sizes and example inputs.

    Raises `PrunerError`: no such program, sizes that are left open, or that it does not have.
    """
    torch, tree = importlib.import_module("torch"), importlib.import_module("torch.utils._pytree")
    reasons, unread = _Reasons(), list[tuple[Any, UnpicklingError]]()
    try:
        with _anywhere(unread), reasons.kept():
            program = torch.export.load(path)
        for made, error in unread:
            if made is not program.example_inputs:
                raise error  # of weights or constants
    except OSError:
        raise
    except Exception as error:  # torch raises kinds of its own
        line = next(iter(reasons.lines), lines_of(error)[0])
        raise PrunerError(
            f"network={network}: torch.export.load cannot read it ({line}); a FILE.pt2 is written "
            "by torch.export.save(torch.export.export(module.eval(), inputs), file)"
        ) from error
    if unread:
        log.warning("network=%s: its example inputs have other classes, values are drawn", network)
    values = {
        node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"
    }
    inputs = [s.arg for s in program.graph_signature.input_specs if s.kind.name == "USER_INPUT"]
    open_sizes = {
        one.name: [size if isinstance(size, int) else str(size) for size in values[one.name].shape]
        for one in inputs
        if hasattr(values[one.name], "shape")
    }
    shapes = fixed_shapes(network, open_sizes, options)
    given = tree.tree_leaves(program.example_inputs) if program.example_inputs else []
    leaves = [
        _example(example, shapes[one.name], values[one.name].dtype)
        if one.name in shapes
        else getattr(one, "value", example)
        for one, example in zip_longest(inputs, given)
    ]
    arguments: Arguments = tree.tree_unflatten(leaves, program.call_spec.in_spec)
    sizes = [size for shape in open_sizes.values() for size in shape]
    if any(isinstance(n, str) for n in sizes) or any("Sym" in type(one).__name__ for one in inputs):
        with torch.no_grad():
            return torch.export.export(program.module(), *arguments)
    program.example_inputs = arguments
    return program


def _example(known: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Repeat the values of an example, which are valid; without an example draw."""
    torch, size = importlib.import_module("torch"), int(np.prod(shape))
    if known is None or known.numel() < min(size, 1):
        (drawn,) = seeded([(shape, str(dtype).removeprefix("torch."))])
        return torch.from_numpy(drawn)
    if tuple(known.shape) == shape:
        return known.detach()
    return known.detach().flatten()[torch.arange(size) % known.numel()].reshape(shape)


class _Reasons(logging.Handler):
    """Keep the errors that torch logs before it raises another without the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the first line of an error."""
        if record.exc_info and record.exc_info[1] is not None:
            self.lines.append(lines_of(record.exc_info[1])[0])

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Take the place of torch's own log."""
        own = logging.getLogger("torch.export")
        with replaced(own, "propagate", False), replaced(own, "handlers", [self]):
            yield


@contextmanager
def _anywhere(unread: list[tuple[Any, UnpicklingError]]) -> Iterator[None]:
    """Let torch read programs of other devices and with classes of other packages.

    ``unread``: gets what stands for parts with other classes, with the errors.
    """
    torch, tree = importlib.import_module("torch"), importlib.import_module("torch.utils._pytree")
    with ExitStack() as changes:
        for name in _READERS:
            try:
                reader = importlib.import_module(name)
                read = reader.deserialize_device
            except (ImportError, AttributeError):
                continue  # of another version of torch
            changed = {
                # weights on "meta" have no values: they are refused, not zeros
                "deserialize_device": lambda one, read=read: (
                    read(one) if one.type == "meta" else torch.device("cpu")
                ),
                # no pickled objects, no compiled code
                "pickle": SimpleNamespace(loads=_refused),
                "_load_aoti": lambda *_: None,
            }
            for part in filter(partial(hasattr, reader), changed):
                changes.enter_context(replaced(reader, part, changed[part]))
        changes.enter_context(replaced(torch, "load", partial(_loaded, torch.load, unread)))
        known = getattr(tree, "SERIALIZED_TYPE_TO_PYTHON_TYPE", None)
        if known is not None:
            types = _Types(known)
            changes.enter_context(replaced(tree, "SERIALIZED_TYPE_TO_PYTHON_TYPE", types))
        yield


def _loaded(
    load: Any, unread: list[tuple[Any, UnpicklingError]], *args: Any, **options: Any
) -> Any:
    """Read tensors and plain containers; torch's second attempt would execute code."""
    try:
        return load(*args, **{**options, "map_location": "cpu", "weights_only": True})
    except UnpicklingError as error:
        if not options.get("weights_only"):
            raise
        unread.append(({}, error))
        return unread[-1][0]


def _refused(_: bytes) -> None:
    raise UnpicklingError("it holds a pickled Python object, which can execute code")


class _Types(dict[str, type]):
    """Hold registered classes by name; make another when it is read."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> type:
        made = type(name.rpartition(".")[2], (_Parts,), {})
        tree = importlib.import_module("torch.utils._pytree")
        tree.register_pytree_node(
            made,
            lambda one: (one.parts, one.context),
            lambda parts, context: made(*parts, context=context),
            serialized_type_name=name,
            flatten_with_keys_fn=lambda one: (
                [(tree.SequenceKey(place), part) for place, part in enumerate(one.parts)],
                one.context,
            ),
        )
        return made


class _Parts:
    """The parts of an object whose class is not at hand."""

    def __init__(self, *parts: Any, context: Any = None) -> None:  # as of a named tuple, too
        self.parts, self.context = list(parts), context

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)
