"""Lines of a record file, plain or compressed, read in pieces; damage ends the file, not the run.

The compression is told from the first bytes, not from the file name, so a mislabelled file still
reads. A stream that stops before its end marker (gzip trailer, xz index, last zstd block) yields
every whole line before the damage and one quarantine entry.
"""

import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from pruner.data.quarantine import Quarantine, Reason

CHUNK_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 24  # records are a few kilobytes; anything this long is not one
BOM = b"\xef\xbb\xbf"

_OPENERS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=31),
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
    b"\x28\xb5\x2f\xfd": lambda: zstandard.ZstdDecompressor().decompressobj(),
}
_DECODE_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError)


class _DamagedStreamError(Exception):
    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def read_lines(path: Path, quarantine: Quarantine) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (0-based number, line without its newline, whether a newline ended it).

    Blank lines are skipped but counted. Whatever is wrong with the file as a whole goes to
    `quarantine`; nothing is raised for it.
    """
    number = 0
    rest = b""
    skipping = False  # inside a line that is too long
    try:
        with path.open("rb") as handle:
            for chunk in _chunks(handle):
                pieces = (rest + chunk).split(b"\n")
                rest = pieces.pop()
                for piece in pieces:
                    if skipping:
                        skipping = False
                    elif piece and not piece.isspace():
                        yield number, piece, True
                    number += 1
                if len(rest) > MAX_LINE_BYTES:
                    if not skipping:
                        detail = f"longer than {MAX_LINE_BYTES} bytes"
                        _report(quarantine, path, number, Reason.LINE_TOO_LONG, detail, rest)
                    rest, skipping = b"", True
    except _DamagedStreamError as damage:
        _report(quarantine, path, number, damage.reason, damage.detail, rest)
        return
    except OSError as error:
        detail = error.strerror or str(error)
        _report(quarantine, path, number, Reason.UNREADABLE_FILE, detail, rest)
        return
    if rest and not rest.isspace() and not skipping:
        yield number, rest, False
    elif number == 0 and not skipping:
        _report(quarantine, path, 0, Reason.EMPTY_FILE, "no line", b"")


def _report(
    quarantine: Quarantine, path: Path, line: int, reason: Reason, detail: str, text: bytes
) -> None:
    quarantine.add(file=str(path), line=line, reason=reason, detail=detail, text=text)


def _chunks(handle: IO[bytes]) -> Iterator[bytes]:
    """Decompressed pieces of the file; raises `_DamagedStreamError` where it breaks off."""
    first = handle.read(CHUNK_BYTES)
    for magic, opener in _OPENERS.items():
        if first.startswith(magic):
            yield from _decompressed(handle, first, opener)
            return
    chunk = first.removeprefix(BOM)
    while chunk:
        yield chunk
        chunk = handle.read(CHUNK_BYTES)


def _decompressed(
    handle: IO[bytes], compressed: bytes, opener: Callable[[], Any]
) -> Iterator[bytes]:
    """Pieces of all members (frames) of a compressed file, one after the other."""
    decoder = opener()
    started = False  # the current member has bytes
    while compressed:
        try:
            if decoder.eof:
                decoder, started = opener(), False
            chunk = decoder.decompress(compressed)
        except _DECODE_ERRORS as error:
            raise _DamagedStreamError(Reason.CORRUPT_STREAM, str(error)) from error
        started = True
        if chunk:
            yield chunk
        if decoder.eof:
            # Zero padding after a member is allowed; tape and block writers leave it.
            compressed = decoder.unused_data.lstrip(b"\0") or handle.read(CHUNK_BYTES).lstrip(b"\0")
        else:
            compressed = handle.read(CHUNK_BYTES)
    if started and not decoder.eof:
        raise _DamagedStreamError(
            Reason.TRUNCATED_FILE, "the compressed file ends before its end marker"
        )
