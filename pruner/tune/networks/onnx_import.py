"""Import an ONNX file as a Relax module."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from pruner.errors import MissingExtra


def from_onnx(path: Path) -> Any:
    """Import an ONNX file with its weights as constants.

    Raises:
        MissingExtra: the package onnx is not installed.
    """
    try:
        onnx = importlib.import_module("onnx")
    except ImportError as error:
        raise MissingExtra("onnx", "network") from error
    frontend = importlib.import_module("tvm.relax.frontend.onnx")
    return frontend.from_onnx(onnx.load(str(path)), keep_params_in_input=False)
