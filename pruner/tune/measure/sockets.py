"""Where the sockets of worker processes lie: in a folder of ours, so that what a kill leaves goes.

Python's ``forkserver`` listens on a socket in a folder ``pymp-*`` among the system's temporary
files. A process that ends removes it; of one that was killed nobody would know whose it was.
"""

import os
import shutil
import socket
import tempfile
from contextlib import suppress
from functools import cache
from multiprocessing import util
from pathlib import Path

_LONGEST = 75  # bytes of our folder's name: below it come 32, and a socket's name has 107
_PRIVATE = 0o700
_LAST = -200  # of what is put away at the end: Python's own folder in it goes before


@cache
def keep_sockets_together() -> None:
    """To be called before the first worker is started; removes what killed processes of ours left.

    Where the folder cannot be made, or its name is too long, sockets lie where Python puts them.
    """
    base = Path(tempfile.gettempdir()) / f"pruner-{os.getuid()}-{socket.gethostname()[:16]}"
    own = base / str(os.getpid())
    if len(os.fsencode(own)) > _LONGEST:
        return
    with suppress(OSError):
        base.mkdir(mode=_PRIVATE, exist_ok=True)
        if base.is_symlink() or base.stat().st_uid != os.getuid():
            return
        for left in base.iterdir():
            if left.name.isdigit() and not Path(f"/proc/{left.name}").exists():
                shutil.rmtree(left, ignore_errors=True)
        own.mkdir(exist_ok=True)
        util.Finalize(None, _clear, args=(own,), exitpriority=_LAST)
        before, tempfile.tempdir = tempfile.tempdir, str(own)
        try:
            util.get_temp_dir()  # which remembers it
        finally:
            tempfile.tempdir = before


def _clear(own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    with suppress(OSError):  # others work
        own.parent.rmdir()
