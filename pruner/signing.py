"""Sign texts by a secret key of this user."""

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

KEY_BYTES = 32


def key_file() -> Path:
    """Return the path of this user's secret key."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "pruner" / "key"


def signature(options: str) -> str:
    """Sign the text of a configuration; empty without a key file."""
    try:
        return hmac.new(_key(key_file()), options.encode(), "sha256").hexdigest()
    except (OSError, RuntimeError):  # no home, or none that can be written
        return ""


def is_own(options: str, signed: str) -> bool:
    """Check whether this user's commands wrote the text."""
    return bool(signed) and hmac.compare_digest(signature(options), signed)


def _key(path: Path) -> bytes:
    """Read the key, created if missing or incomplete: an empty key protects nothing."""
    if not path.is_file() or path.stat().st_size != KEY_BYTES:
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        own = path.with_name(f".{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with suppress(FileExistsError):  # another process was first: its key counts
            os.link(own, path)
        own.unlink()
    return path.read_bytes()
