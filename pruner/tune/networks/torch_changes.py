"""Functions of torch that are replaced while it exports or reads a program."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_TURNS = threading.RLock()  # held while a function is replaced


@contextmanager
def replaced(owner: Any, name: str, new: Any) -> Iterator[None]:
    """Replace an attribute; threads take turns."""
    with _TURNS:
        before = getattr(owner, name)
        setattr(owner, name, new)
        try:
            yield
        finally:
            setattr(owner, name, before)


@contextmanager
def masks_by_values() -> Iterator[None]:
    """Export torch's transformers without their comparison of masks.

    A branch on values cannot be exported. A mask is applied without this hint, too.
    """

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return bool(is_causal)

    transformer = importlib.import_module("torch.nn.modules.transformer")
    with replaced(transformer, "_detect_is_causal_mask", detect):
        yield


@contextmanager
def tensors_shared() -> Iterator[None]:
    """Copy objects without their tensors.

    While torch exports a module, it has no copy of a tensor that is no input.
    """
    tensor = importlib.import_module("torch").Tensor
    with replaced(tensor, "__deepcopy__", lambda one, _: one):
        yield
