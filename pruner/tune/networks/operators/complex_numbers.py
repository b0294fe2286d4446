"""Complex numbers as pairs of real tensors: TVM has none.

A program with complex values is run on pairs while torch exports it anew, so only operators of real
tensors remain. A Fourier transform of n points becomes products with n columns of cosines and
sines.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as tree

from pruner.errors import PrunerError

aten = torch.ops.aten

_MOST = 4096  # points of a transform
# Operators that treat both parts alike: they move elements, add them or change all signs.
_SEPARATE = (
    *("_unsafe_view", "alias", "as_strided", "cat", "clone", "contiguous", "copy", "cumsum"),
    *("detach", "diagonal", "expand", "flip", "gather", "index", "index_put", "index_select"),
    *("lift_fresh_copy", "mean", "neg", "permute", "repeat", "reshape", "roll", "scatter"),
    *("select", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes"),
    *("squeeze", "stack", "sum", "t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
    "where",
)
# Numbers of torch's fft_norm_mode: the power of the number of points that divides the sum.
_NORMS = {0: 0.0, 1: 0.5, 2: 1.0}


@dataclass(frozen=True, slots=True)
class Pair:
    """The real and the imaginary parts of a tensor."""

    real: Any
    imag: Any


def without_complex(program: Any) -> Any:
    """Return a decomposed program of real tensors.

    It is the same program if it has no complex tensors, or an operator without a rule for them.
    Raises `PrunerError`: inputs or outputs are complex. Raises `AssertionError`: a transform has
    too many points, in the words of TVM's front end.
    """
    nodes = [node for node in program.graph.nodes if touches_complex(node)]
    if not nodes or any(map(lacks_rule, nodes)):
        return program
    inputs = tree.tree_leaves(program.example_inputs)
    if any(_is_complex(one) for one in inputs):
        raise PrunerError(
            "an input is complex: pass torch.view_as_real of it, and write torch.view_as_complex "
            "in the network"
        )
    args, kwargs = program.example_inputs
    with torch.no_grad():
        return torch.export.export(_Real(program), args, kwargs)


def touches_complex(node: fx.Node) -> bool:
    """Check for complex results or operands of a call."""
    nodes = (node, *node.all_input_nodes)
    return any(_is_complex(one.meta.get("val")) for one in nodes)


def lacks_rule(node: fx.Node) -> bool:
    """Check for a call of complex numbers that cannot be rewritten."""
    name = _name(node.target)
    known = name in _RULES or name in _SEPARATE or name in _PRODUCTS or name in _FOURIER
    return node.op == "call_function" and bool(name) and touches_complex(node) and not known


def _name(target: Any) -> str:
    return str(getattr(getattr(target, "_schema", None), "name", "")).removeprefix("aten::")


class _Real(nn.Module):
    """Runs a program on pairs; constants are stored in parts."""

    def __init__(self, program: Any) -> None:
        super().__init__()
        self.inner, self._spec = program.module(check_guards=False), program.call_spec.out_spec
        for node in program.graph.nodes:
            for name, values in _transforms(node).items():
                self.register_buffer(name, values)
        named = {name for name, _ in (*self.inner.named_parameters(), *self.inner.named_buffers())}
        for number, node in enumerate(self.inner.graph.nodes):
            is_constant = node.op == "get_attr"
            value: Any = operator.attrgetter(str(node.target))(self.inner) if is_constant else None
            # export loses constants that are no buffers, and lifts complex weights
            if _is_complex(value) or (isinstance(value, Tensor) and node.target not in named):
                owner, _, name = str(node.target).rpartition(".")
                parts = {"real": value.detach()}
                if _is_complex(value):
                    parts = {"real": parts["real"].real, "imag": parts["real"].imag}
                for part, one in parts.items():
                    self.register_buffer(f"constant_{number}_{part}", one.clone())
                node.meta["constant"] = [f"constant_{number}_{part}" for part in parts]
                if hasattr(owned := self.inner.get_submodule(owner), name):
                    delattr(owned, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program."""
        leaves = tree.tree_leaves((args, kwargs))
        found = _OnPairs(self).run(*leaves, enable_io_processing=False)
        if any(isinstance(one, Pair) for one in found):
            raise PrunerError("an output is complex: return torch.view_as_real of it")
        return tree.tree_unflatten(list(found), self._spec)


class _OnPairs(fx.Interpreter):
    """Computes with pairs where an operator has complex numbers."""

    def __init__(self, real: _Real) -> None:
        super().__init__(real.inner)
        self._real = real

    def run_node(self, node: fx.Node) -> Any:
        """Fetch constants as they are stored."""
        constant = node.meta.get("constant") if node.op == "get_attr" else None
        if constant is None:
            return super().run_node(node)
        parts = [getattr(self._real, name) for name in constant]
        return Pair(*parts) if len(parts) == 2 else parts[0]

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Compute with pairs, by the rule of the operator."""
        name = _name(target)
        if name in _FOURIER:
            return _FOURIER[name](self._real, *args, **kwargs)
        leaves = tree.tree_leaves((args, kwargs))
        known = any(isinstance(one, Pair | complex) or _is_complex(one) for one in leaves)
        if not known and name not in _BEGIN:
            return super().call_function(target, args, kwargs)
        if name in _RULES:
            return _RULES[name](*args, **kwargs)
        if name in _PRODUCTS:
            return _product(*args, multiply=target)
        if name in _SEPARATE:
            return _separately(target, args, kwargs)
        return super().call_function(target, args, kwargs)  # the items of a list


def _is_complex(value: Any) -> bool:
    dtype = value if isinstance(value, torch.dtype) else getattr(value, "dtype", None)
    return isinstance(dtype, torch.dtype) and dtype.is_complex


def _parts(value: Any) -> tuple[Any, Any]:
    if isinstance(value, Pair | complex):
        return value.real, value.imag
    return value, torch.zeros_like(value) if isinstance(value, Tensor) else type(value)(0)


def _is_real(value: Any) -> bool:
    return not isinstance(value, Pair | complex)


def _separately(target: Any, args: Any, kwargs: Any) -> Any:
    """Call an operator once for each part; whole numbers are indices."""

    def part(number: int) -> Any:
        def of(leaf: Any) -> Any:
            is_number = isinstance(leaf, Tensor) and leaf.is_floating_point()
            return _parts(leaf)[number] if is_number or not _is_real(leaf) else leaf

        plain = {k: v.to_real() if _is_complex(v) else v for k, v in kwargs.items()}
        return target(*tree.tree_map(of, args), **tree.tree_map(of, plain))

    real, imag = part(0), part(1)
    if isinstance(real, list | tuple):
        return [Pair(*both) for both in zip(real, imag, strict=True)]
    return Pair(real, imag)


def _product(x: Any, y: Any, *, multiply: Any = operator.mul) -> Pair:
    if _is_real(y):
        return Pair(multiply(x.real, y), multiply(x.imag, y))
    if _is_real(x):
        return Pair(multiply(x, y.real), multiply(x, y.imag))
    return Pair(
        multiply(x.real, y.real) - multiply(x.imag, y.imag),
        multiply(x.real, y.imag) + multiply(x.imag, y.real),
    )


def _sum(x: Any, y: Any, *, alpha: float = 1, sign: int = 1) -> Pair:
    (a, b), (c, d) = _parts(x), _parts(y)
    return Pair(a + sign * alpha * c, b + sign * alpha * d)


def _quotient(x: Any, y: Any) -> Pair:
    if _is_real(y):
        return Pair(x.real / y, x.imag / y)
    size = y.real * y.real + y.imag * y.imag
    found = _product(x, Pair(y.real, -y.imag))
    return Pair(found.real / size, found.imag / size)


def _absolute(x: Pair) -> Tensor:
    return torch.sqrt(x.real * x.real + x.imag * x.imag)


def _angle(x: Pair) -> Tensor:
    return torch.atan2(x.imag, x.real)


def _polar(size: Any, angle: Any) -> Pair:
    return Pair(size * torch.cos(angle), size * torch.sin(angle))


def _power(x: Pair, exponent: Any) -> Pair:
    if exponent == 2:
        return _product(x, x)
    return _polar(_absolute(x) ** exponent, _angle(x) * exponent)


def _converted(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    real = dtype.to_real() if dtype is not None and dtype.is_complex else dtype
    if dtype is not None and not dtype.is_complex:
        return _parts(x)[0].to(dtype)
    return Pair(*(part if real is None else part.to(real) for part in _parts(x)))


def _filled(size: Any, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    real, imag = _parts(value)
    if dtype is not None and not dtype.is_complex:
        return torch.full(size, real, dtype=dtype)
    kind = torch.get_default_dtype() if dtype is None else dtype.to_real()
    return Pair(torch.full(size, real, dtype=kind), torch.full(size, imag, dtype=kind))


def _filled_like(x: Any, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    shape, own = _parts(x)[0].shape, _parts(x)[0].dtype
    if dtype is None and not _is_real(x):
        dtype = own.to_complex()
    return _filled(shape, value, dtype=dtype or own)


def _padded(x: Pair, around: Any, value: Any = 0) -> Pair:
    return Pair(
        *(
            aten.constant_pad_nd.default(one, around, fill)
            for one, fill in zip(_parts(x), _parts(value), strict=True)
        )
    )


def _masked(x: Pair, mask: Tensor, value: Any) -> Pair:
    pairs = zip(_parts(x), _parts(value), strict=True)
    return Pair(*(torch.masked_fill(one, mask, fill) for one, fill in pairs))


def _conjugate(x: Any) -> Any:
    return x if _is_real(x) else Pair(x.real, -x.imag)


_RULES: dict[str, Callable[..., Any]] = {
    "_assert_tensor_metadata": lambda *_, **__: None,
    "_conj": _conjugate,
    "_conj_physical": _conjugate,
    "_to_copy": _converted,
    "abs": _absolute,
    "add": _sum,
    "angle": _angle,
    "complex": Pair,
    "conj_physical": _conjugate,
    "constant_pad_nd": _padded,
    "div": _quotient,
    "exp": lambda x: _polar(torch.exp(x.real), x.imag),
    "full": _filled,
    "full_like": _filled_like,
    "imag": lambda x: x.imag,
    "linalg_vector_norm": lambda x, *a, **k: aten.linalg_vector_norm.default(_absolute(x), *a, **k),
    "masked_fill": _masked,
    "mul": _product,
    "polar": _polar,
    "pow": _power,
    "real": lambda x: x.real,
    "reciprocal": lambda x: _quotient(1.0, x),
    "resolve_conj": lambda x: x,
    "sub": partial(_sum, sign=-1),
    "view_as_complex": lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": lambda x: torch.stack([x.real, x.imag], -1),
}
_BEGIN = ("complex", "polar", "view_as_complex")  # whose operands are real
_PRODUCTS = ("bmm", "mm", "dot", "mv")


def _transforms(node: fx.Node) -> dict[str, Tensor]:
    """Make the waves that a transform needs, by names of buffers."""
    name = _name(node.target)
    if name not in _FOURIER:
        return {}
    args: Any = node.args  # the tensor, its dimensions, how sums are divided, and the last option
    value, dims = args[0].meta["val"], args[1]
    wanted = [("all", value.shape[dim]) for dim in dims]
    if name == "_fft_c2r":
        wanted[-1] = ("back", args[3])
    elif name == "_fft_r2c" and args[3]:
        wanted[-1] = ("half", value.shape[dims[-1]])
    found = {}
    for kind, count in wanted:
        if count > _MOST:
            told = f"{name} ({count} points for at most {_MOST})"
            raise AssertionError(f"Unsupported function types ['{told}']")
        waves = _waves(kind, count)
        for part, values in zip(("cos", "sin"), waves, strict=True):
            real = value.dtype.to_real() if value.dtype.is_complex else value.dtype
            found[f"{kind}_{count}_{part}"] = torch.from_numpy(values).to(real)
    return found


def _waves(kind: str, count: int) -> tuple[Any, Any]:
    """Compute cosines and sines [points, frequencies]; transposed for the way back."""
    some, points = np.arange(count if kind == "all" else count // 2 + 1), np.arange(count)
    # the remainder keeps angles exact
    angles = 2 * np.pi / count * (np.outer(points, some) % count)
    if kind != "back":
        return np.cos(angles), np.sin(angles)
    # each but the first and the middle frequency stands for two
    twice = np.where((some == 0) | (2 * some == count), 1.0, 2.0)[:, None]
    return np.cos(angles).T * twice, np.sin(angles).T * twice


def _along(x: Tensor, matrix: Tensor, dim: int) -> Tensor:
    return torch.matmul(x.movedim(dim, -1), matrix).movedim(-1, dim)


def _turned(real: Any, x: Pair, dim: int, forward: bool) -> Pair:
    cos, sin = _buffers(real, "all", x.real.shape[dim])
    if not forward:
        sin = -sin
    return Pair(
        _along(x.real, cos, dim) + _along(x.imag, sin, dim),
        _along(x.imag, cos, dim) - _along(x.real, sin, dim),
    )


def _buffers(real: Any, kind: str, count: int) -> list[Any]:
    return [getattr(real, f"{kind}_{count}_{part}") for part in ("cos", "sin")]


def _scaled(x: Any, counts: list[int], norm: int) -> Any:
    by = prod(counts) ** -_NORMS[norm]
    if by == 1:
        return x
    return x * by if isinstance(x, Tensor) else Pair(x.real * by, x.imag * by)


def _real_to_complex(real: Any, x: Tensor, dims: Any, norm: int, onesided: bool) -> Pair:
    counts, last = [x.shape[dim] for dim in dims], dims[-1]
    cos, sin = _buffers(real, "half" if onesided else "all", x.shape[last])
    found = Pair(_along(x, cos, last), -_along(x, sin, last))
    for dim in dims[:-1]:
        found = _turned(real, found, dim, True)
    return _scaled(found, counts, norm)


def _complex_to_complex(real: Any, x: Pair, dims: Any, norm: int, forward: bool) -> Pair:
    counts = [x.real.shape[dim] for dim in dims]
    for dim in dims:
        x = _turned(real, x, dim, forward)
    return _scaled(x, counts, norm)


def _complex_to_real(real: Any, x: Pair, dims: Any, norm: int, size: int) -> Tensor:
    counts, last = [*(x.real.shape[dim] for dim in dims[:-1]), size], dims[-1]
    for dim in dims[:-1]:
        x = _turned(real, x, dim, False)
    cos, sin = _buffers(real, "back", size)
    return _scaled(_along(x.real, cos, last) - _along(x.imag, sin, last), counts, norm)


_FOURIER: dict[str, Callable[..., Any]] = {
    "_fft_c2c": _complex_to_complex,
    "_fft_c2r": _complex_to_real,
    "_fft_r2c": _real_to_complex,
}
