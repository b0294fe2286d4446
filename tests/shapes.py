"""Checks the shapes and types of arrays that annotations promise; other annotations are mypy's."""

import inspect
import typing

from beartype import beartype
from jaxtyping import AbstractArray


def arrays_checked(function):
    """The function, with those of its annotations checked that have a jaxtyping array in them."""
    if not callable(function) or isinstance(function, type):
        return function
    hints = {name: _resolved(hint, function) for name, hint in function.__annotations__.items()}
    kept = {name: hint for name, hint in hints.items() if _has_array(hint)}
    if not kept:
        return function
    function.__annotations__ = kept
    return beartype(function)


def _resolved(hint, function):
    """The annotation behind a string, where the names in it are known when the module loads."""
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, function.__globals__)
    except (NameError, TypeError):  # a class further below; arrays are imported
        return hint


def _has_array(hint):
    if inspect.isclass(hint) and issubclass(hint, AbstractArray):
        return True
    return any(map(_has_array, typing.get_args(hint)))
