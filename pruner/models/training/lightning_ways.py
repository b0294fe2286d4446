"""Adapt Lightning: atomic checkpoint files, and Ctrl-C passed on."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.plugins.io import TorchCheckpointIO

from pruner.models.checkpoint.convert import load_content
from pruner.models.checkpoint.tensors import save_tensors


class CompleteFiles(TorchCheckpointIO):
    """Write Lightning's checkpoints atomically, as all files of this project.

    Lightning's own way uses the system's temporary files, and leaves a file there when killed.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write a checkpoint, folder included."""
        save_tensors(Path(path), checkpoint)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read a checkpoint, on the CPU."""
        content: dict[str, Any] = load_content(Path(path))
        return content


@contextmanager
def ctrl_c_passes() -> Iterator[None]:
    """Restore KeyboardInterrupt and its handler after Lightning.

    Lightning turns an interrupt into exit code 1, and ignores the next interrupt.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ending:
        # Lightning raises SystemExit while it handles the interrupt.
        if isinstance(ending.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise ending.__context__ from None
        raise
