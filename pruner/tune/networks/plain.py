"""Arguments and results of torch's modules as plain containers of tensors and constants.

A library takes and returns tensors, and torch.export takes only classes that are registered with
it. So a class is taken apart: as it is registered; else into its elements, as caches of keys and
values; else into its public attributes with tensors.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from operator import is_
from typing import TYPE_CHECKING, Any

from pruner.errors import PrunerError

if TYPE_CHECKING:
    from torch import Tensor, nn

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # by position, and by name
_CONSTANTS = bool | int | float | str  # beside None
_TURNS = threading.RLock()  # held while an attribute is replaced


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Replace an attribute, of torch for example; threads take turns."""
    with _TURNS:
        before = getattr(owner, name)
        setattr(owner, name, new)
        try:
            yield
        finally:
            setattr(owner, name, before)


def arguments_of(given: Any) -> Arguments:
    """Convert example inputs: a tensor, inputs in order, or a mapping by name."""
    if hasattr(given, "shape"):
        return (given,), {}
    return ((), dict(given)) if isinstance(given, Mapping) else (tuple(given), {})


def tensors_of(values: Any) -> list[Tensor]:
    """List the tensors of nested arguments or results, in order."""
    torch, found = importlib.import_module("torch"), list[Any]()
    for leaf in pytree().tree_leaves(values):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif not _is_constant(leaf):
            with suppress(PrunerError):  # it holds something else
                found += tensors_of(plain(leaf))
    return found


def with_tensors(arguments: Arguments, tensors: Iterable[Tensor]) -> Arguments:
    """Replace the tensors of nested arguments, in order.

    Raises `PrunerError`: an object among them makes its tensors anew when they are read.
    """
    torch, given = importlib.import_module("torch"), iter(tensors)

    def filled(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return next(given)
        before = [] if _is_constant(leaf) else tensors_of(leaf)
        if not before:
            return leaf
        after = [next(given) for _ in before]
        # A copy of an object in which other tensors take the places of its own. While torch exports
        # a module, it has no copy of a tensor that is no input.
        with replaced(torch.Tensor, "__deepcopy__", lambda one, _: one):
            made = copy.deepcopy(leaf, _Instead(before, after))
        if not all(map(is_, tensors_of(made), after)):
            raise PrunerError(
                f"the tensors of a {type(leaf).__name__} among the inputs cannot be replaced: give "
                "them in tuples, lists and dicts, and make the object in forward"
            )
        return made

    found: Arguments = pytree().tree_map(filled, arguments)
    return found


class _Instead(dict[int, Any]):
    """The memo of a deep copy: a tensor at two places becomes two."""

    def __init__(self, before: Iterable[Tensor], after: Iterable[Tensor]) -> None:
        super().__init__()
        self._tensors: dict[int, list[Tensor]] = {}
        for one, other in zip(before, after, strict=True):
            self._tensors.setdefault(id(one), []).append(other)

    def get(self, key: int, default: Any = None) -> Any:
        """Return what stands for an object, as ``copy.deepcopy`` reads it."""
        left = self._tensors.get(key)
        if left is None:
            return super().get(key, default)
        return left.pop(0) if len(left) > 1 else left[0]


def plain(value: Any, path: str = "outputs", above: frozenset[int] = frozenset()) -> Any:
    """Convert arguments or results to plain containers of tensors and constants.

    Mappings become dicts, and classes that register names for torch.export, too. ``path``: the
    value's name in messages. ``above``: which objects it is part of.

    Raises `PrunerError`: a part is something else and holds no tensors.
    """
    torch = importlib.import_module("torch")
    if _is_constant(value) or isinstance(value, torch.Tensor):
        return value
    if id(value) not in above:
        above |= {id(value)}
        parts = _parts(value)
        if isinstance(parts, dict):
            return {key: plain(part, f"{path}[{key!r}]", above) for key, part in parts.items()}
        if parts is not None:
            found = [plain(part, f"{path}[{place}]", above) for place, part in enumerate(parts)]
            return found if isinstance(parts, list) else tuple(found)
        if named := _attributes(value, path, above):
            return named
    raise PrunerError(
        f"{path} is of {type(value).__name__}: a library takes and returns tensors and constants, "
        "in tuples, lists and dicts; wrap the module and leave the rest out"
    )


def _parts(value: Any) -> Mapping[Any, Any] | Sequence[Any] | None:
    """Return the parts of a container, None for another object."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return value
    registered = pytree().SUPPORTED_NODES.get(type(value))
    if registered is not None:
        children, context = registered.flatten_fn(value)
        children = tuple(children)
        names = names_in(type(value), context, len(children))
        return children if names is None else dict(zip(names, children, strict=True))
    # elements of a set have no order; an array is no container of tensors
    is_plain = isinstance(value, Iterable) and not isinstance(value, Set)
    if is_plain and not hasattr(value, "__array__"):  # else the array's own code
        with suppress(Exception):  # of any kind: its elements are made by code of its own
            return tuple(value)
    return None


def _attributes(value: Any, path: str, above: frozenset[int]) -> dict[str, Any]:
    found = {}
    for name, part in getattr(value, "__dict__", {}).items():
        if not name.startswith("_"):
            with suppress(PrunerError):
                one = plain(part, f"{path}.{name}", above)
                if tensors_of(one):
                    found[name] = one
    return found


def names_in(kind: type, context: Any, count: int) -> list[Any] | None:
    """Return the names of a class's `count` parts, None where it has none.

    ``context``: what the class registered for torch.export beside its parts.
    """
    if isinstance(context, list):  # in it, a dataclass and a defaultdict have the list of theirs
        context = next((one for one in context if isinstance(one, list)), context)
    if not isinstance(context, list) or len(context) != count:
        return None
    are_names = issubclass(kind, Mapping) or all(isinstance(one, str) for one in context)
    return context if are_names else None


def plain_call(module: nn.Module, arguments: Arguments) -> tuple[nn.Module, Arguments]:
    """Wrap a module that takes classes; plain arguments leave it as it is.

    A tensor at two places becomes two: ``torch.export`` would read one of these inputs for both.

    Raises `PrunerError`: see `plain`.
    """
    if _is_plain(arguments):
        return module, _apart(arguments)
    by_position, by_name = (plain(part, "inputs") for part in arguments)
    return plain_module(module, arguments), _apart((by_position, by_name))


def _apart(arguments: Arguments) -> Arguments:
    torch, seen = importlib.import_module("torch"), set[int]()

    def own(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        is_new = id(leaf) not in seen
        seen.add(id(leaf))
        return leaf if is_new else leaf.clone()

    found: Arguments = pytree().tree_map(own, arguments)
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping) and type(value) in pytree().SUPPORTED_NODES:
        return all(map(_is_plain, value.values()))
    # a list of another class is no container of torch.export
    is_named = isinstance(value, tuple) and hasattr(value, "_fields")
    if is_named or type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return _is_constant(value) or isinstance(value, importlib.import_module("torch").Tensor)


def plain_module(model: nn.Module, arguments: Arguments | None = None) -> nn.Module:
    """Wrap a module to return plain containers.

    ``arguments``: it takes objects as they are there, and is called with their tensors.
    """
    torch = importlib.import_module("torch")

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if arguments is not None:
            # objects that a call may change are made anew for each
            args, kwargs = with_tensors(arguments, tensors_of((args, kwargs)))
        return plain(self.model(*args, **kwargs))

    # inputs keep the names that they have in the module
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    own = inspect.signature(model.forward)
    signature = own.replace(parameters=[first, *own.parameters.values()])
    vars(forward)["__signature__"] = signature
    wrapper: nn.Module = type(type(model).__name__, (torch.nn.Module,), {"forward": forward})()
    wrapper.model = model
    return wrapper


def _is_constant(value: Any) -> bool:
    return value is None or isinstance(value, _CONSTANTS)


def pytree() -> Any:
    """Return torch's module of nested containers; torch takes seconds to import."""
    return importlib.import_module("torch.utils._pytree")
