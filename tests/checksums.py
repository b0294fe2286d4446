"""Whether the checksums beside records hold."""

import hashlib
from pathlib import Path


def assert_checksums(folder: Path) -> None:
    """``SHA256SUMS`` names every other file below the folder, with the digest of what is in it."""
    lines = (folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = dict(reversed(line.split("  ")) for line in lines)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    assert set(sums) == {path.relative_to(folder).as_posix() for path in files}
    for path in files:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest == sums[path.relative_to(folder).as_posix()]
