"""Restrict the code that the configuration of a run folder may name.

A configuration without the signature of this user's key may name only classes of ``conf/``.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pruner.paths import conf_folder

_TARGET, _INTERPRETER = "_target_", "environment"  # keys whose values are code
_NAMED = re.compile(rf"^\s*{_TARGET}:\s*(\S+)", re.MULTILINE)
_PLAIN = re.compile(r"[\w-]+")  # names of the catalog of networks; a factory has a colon


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
