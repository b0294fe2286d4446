"""Read the lines of a record file, plain or compressed, in pieces.

Damage ends the file, not the run: every whole line before it is read. The first bytes, not the
name, tell the compression.
"""

import lzma
import zlib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import zstandard

from pruner.data import limits
from pruner.data.quarantine import MalformedError, Quarantine, Reason

CHUNK_BYTES = 1 << 16
TAR = slice(257, 262)  # where a tar archive has its mark
BOM, UTF16 = b"\xef\xbb\xbf", (b"\xff\xfe", b"\xfe\xff")

_DECODE_ERRORS = (zlib.error, lzma.LZMAError, zstandard.ZstdError, EOFError)


class _Member:
    """A member (frame) of a compressed file; `rest` follows its end."""

    _decoder: Any

    def feed(self, compressed: bytes) -> Iterator[bytes]:
        raise NotImplementedError

    @property
    def eof(self) -> bool:
        return bool(self._decoder.eof)

    @property
    def rest(self) -> bytes:
        return bytes(self._decoder.unused_data)


class _Gzip(_Member):
    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(wbits=31)

    def feed(self, compressed: bytes) -> Iterator[bytes]:
        piece = b""
        while compressed or len(piece) == limits.PIECE_BYTES:  # a full piece: there may be more
            piece = self._decoder.decompress(compressed, limits.PIECE_BYTES)
            compressed = self._decoder.unconsumed_tail
            yield piece


class _Xz(_Member):
    def __init__(self) -> None:
        self._decoder = lzma.LZMADecompressor(memlimit=limits.XZ_MEMORY_BYTES)

    def feed(self, compressed: bytes) -> Iterator[bytes]:
        yield self._decoder.decompress(compressed, limits.PIECE_BYTES)
        while not (self._decoder.needs_input or self._decoder.eof):
            yield self._decoder.decompress(b"", limits.PIECE_BYTES)


class _Zstandard(_Member):
    def __init__(self) -> None:
        self._decoder = zstandard.ZstdDecompressor().decompressobj()
        self._behind = b""

    @property
    def rest(self) -> bytes:
        return super().rest + self._behind

    def feed(self, compressed: bytes) -> Iterator[bytes]:
        for start in range(0, len(compressed), limits.ZSTD_INPUT_BYTES):
            some = self._decoder.decompress(compressed[start : start + limits.ZSTD_INPUT_BYTES])
            if len(some) <= limits.PIECE_BYTES:
                yield some
            else:
                size = limits.PIECE_BYTES
                yield from (some[i : i + size] for i in range(0, len(some), size))
            if self._decoder.eof:
                self._behind = compressed[start + limits.ZSTD_INPUT_BYTES :]
                return


_DECODERS: dict[bytes, type[_Member]] = {
    b"\x1f\x8b": _Gzip,
    b"\xfd7zXZ\x00": _Xz,
    b"\x28\xb5\x2f\xfd": _Zstandard,
}


def read_lines(path: Path, quarantine: Quarantine) -> Iterator[tuple[int, bytes, bool]]:
    """Yield (0-based number, line without its newline, whether a newline ended it).

    Blank lines are only counted; damage of the whole file goes to `quarantine`.
    """
    number = 0
    rest = b""
    skipping = False  # inside a line that is too long
    too_long = f"longer than {limits.MAX_LINE_BYTES} bytes"
    try:
        with path.open("rb") as handle:
            for chunk in _limited(_chunks(handle)):
                pieces = (rest + chunk).split(b"\n")
                rest = pieces.pop()
                for piece in pieces:
                    if skipping:
                        skipping = False
                    elif len(piece) > limits.MAX_LINE_BYTES:
                        _report(quarantine, path, number, Reason.LINE_TOO_LONG, too_long, piece)
                    elif piece and not piece.isspace():
                        yield number, piece, True
                    number += 1
                if len(rest) > limits.MAX_LINE_BYTES:
                    if not skipping:
                        _report(quarantine, path, number, Reason.LINE_TOO_LONG, too_long, rest)
                    rest, skipping = b"", True
                if number > limits.MAX_LINES:
                    raise MalformedError(
                        Reason.FILE_TOO_LARGE, f"more than {limits.MAX_LINES} lines; divide it"
                    )
    except MalformedError as damage:
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


def _limited(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield chunks without byte order mark; refuse UTF-16, tar and more than `MAX_FILE_BYTES`."""
    left, first = limits.MAX_FILE_BYTES, next(chunks, b"")
    if first.startswith(UTF16):
        raise MalformedError(Reason.NOT_UTF8, "UTF-16; write it as UTF-8")
    if first[TAR].startswith(b"ustar"):
        raise MalformedError(Reason.ARCHIVE, "a tar archive; unpack it")
    for chunk in chain([first.removeprefix(BOM)], chunks):
        left -= len(chunk)
        if left < 0:
            raise MalformedError(
                Reason.FILE_TOO_LARGE, f"more than {limits.MAX_FILE_BYTES} bytes; divide it"
            )
        yield chunk


def _chunks(handle: IO[bytes]) -> Iterator[bytes]:
    """Yield decompressed pieces; raises `MalformedError` where the file breaks off."""
    chunk = handle.read(CHUNK_BYTES)
    for magic, decoder in _DECODERS.items():
        if chunk.startswith(magic):
            yield from _decompressed(handle, chunk, decoder)
            return
    while chunk:
        yield chunk
        chunk = handle.read(CHUNK_BYTES)


def _decompressed(handle: IO[bytes], compressed: bytes, opener: type[_Member]) -> Iterator[bytes]:
    decoder = opener()
    started = False  # the current member has bytes
    while compressed:
        try:
            if decoder.eof:
                decoder, started = opener(), False
            for piece in decoder.feed(compressed):
                if piece:
                    yield piece
        except _DECODE_ERRORS as error:
            raise MalformedError(Reason.CORRUPT_STREAM, str(error)) from error
        started = True
        if decoder.eof:
            # Zero padding after a member is allowed; tape and block writers leave it.
            compressed = decoder.rest.lstrip(b"\0") or handle.read(CHUNK_BYTES).lstrip(b"\0")
        else:
            compressed = handle.read(CHUNK_BYTES)
    if started and not decoder.eof:
        raise MalformedError(
            Reason.TRUNCATED_FILE, "the compressed file ends before its end marker"
        )
