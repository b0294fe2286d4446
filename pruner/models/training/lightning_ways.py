"""Where Lightning's ways are not ours: how it writes files, and what it makes of Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytorch_lightning.plugins.io import TorchCheckpointIO

from pruner.models.checkpoint.convert import load_content
from pruner.models.checkpoint.tensors import save_tensors


class WholeFiles(TorchCheckpointIO):
    """Lightning's checkpoints as the files of this project: whole and on the disk, or not there.

    Lightning's own way goes over the system's temporary files, and leaves one there when killed.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None
    ) -> None:
        """Write it, folder included."""
        save_tensors(Path(path), checkpoint)

    def load_checkpoint(self, path: str | Path, *_: Any, **__: Any) -> dict[str, Any]:
        """Read it, on the CPU."""
        content: dict[str, Any] = load_content(Path(path))
        return content


@contextmanager
def ctrl_c_passes() -> Iterator[None]:
    """Lightning makes exit code 1 of an interrupt, and ignores the next one."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as ending:
        if isinstance(ending.__context__, KeyboardInterrupt):
            signal.signal(signal.SIGINT, before)
            raise ending.__context__ from None
        raise
