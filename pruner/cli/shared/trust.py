"""Restrict the code that the configuration of a run folder may name.

A configuration without the signature of this user's key may name only classes of ``conf/``.
"""

import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from pruner.paths import conf_folder

KEY_BYTES = 32
_TARGET, _INTERPRETER = "_target_", "environment"  # keys whose values are code
_NAMED = re.compile(rf"^\s*{_TARGET}:\s*(\S+)", re.MULTILINE)
_PLAIN = re.compile(r"[\w-]+")  # names of the catalog of networks; a factory has a colon


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


def named_code(config: Mapping[str, Any]) -> list[str]:
    """List code that a configuration executes beyond ``conf/``, as ``option=value``."""
    network, own = config.get("network"), (config.get("models") or {}).get("own")
    found = list(_named(config, ""))
    if network is not None and not _PLAIN.fullmatch(str(network)):
        found.append(f"network={network}")
    if own:
        found.append(f"models.own=[{','.join(map(str, own))}]")
    return found


def _named(value: Any, path: str) -> Iterator[str]:
    """Yield classes, files of programs and interpreters in a value."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from _named(item, f"{path}{number}.")
    if not isinstance(value, Mapping):
        return
    if value.get("operator") == "file":
        yield f"{path}path={value.get('path')}"
    for key, item in value.items():
        if key == _INTERPRETER or (
            key == _TARGET and str(item) not in _known_targets(conf_folder())
        ):
            yield f"{path}{key}={item}"
        yield from _named(item, f"{path}{key}.")


@cache
def _known_targets(folder: Path) -> frozenset[str]:
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.yaml"))
    return frozenset(name for text in texts for name in _NAMED.findall(text))
