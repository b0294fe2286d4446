import gzip
import hashlib
import lzma
import tracemalloc
from functools import cache, partial

import pytest
import zstandard

from pruner.data import stream
from pruner.data.quarantine import Quarantine, Reason, read_report
from pruner.data.stream import read_lines

LINES = [f"line {n} {hashlib.sha512(b'%d' % n).hexdigest()}".encode() for n in range(8000)]
TEXT = b"".join(text + b"\n" for text in LINES)
PACK = {
    ".json": bytes,
    ".json.gz": partial(gzip.compress, compresslevel=1),
    ".json.xz": partial(lzma.compress, preset=0),
    # With its checksum, as the zstd command writes it; without, rewritten letters go unnoticed.
    ".json.zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@cache
def packed_text(suffix):
    return PACK[suffix](TEXT)


def read(path):
    quarantine = Quarantine()
    lines = list(read_lines(path, quarantine))
    return lines, quarantine.counts


@pytest.mark.parametrize("suffix", PACK)
def test_every_compression_gives_the_same_lines(tmp_path, suffix):
    path = tmp_path / "log.json"  # told from its content
    path.write_bytes(packed_text(suffix))
    lines, counts = read(path)
    assert lines == [(number, text, True) for number, text in enumerate(LINES)]
    assert not counts


@pytest.mark.parametrize("suffix", [".json.gz", ".json.xz", ".json.zst"])
def test_members_one_after_the_other_are_one_file(tmp_path, suffix):
    path = tmp_path / "log"
    path.write_bytes(PACK[suffix](b"one\ntw") + PACK[suffix](b"o\nthree\n") + b"\0" * 512)
    lines, counts = read(path)
    assert [text for _, text, _ in lines] == [b"one", b"two", b"three"]
    assert not counts


@pytest.mark.parametrize("suffix", [".json.gz", ".json.xz", ".json.zst"])
@pytest.mark.parametrize("share", [0.5, 0.9, "last byte"])
def test_a_stream_that_breaks_off_keeps_its_whole_lines(tmp_path, suffix, share):
    packed = packed_text(suffix)
    path = tmp_path / "log"
    path.write_bytes(packed[:-1] if share == "last byte" else packed[: int(len(packed) * share)])
    lines, counts = read(path)
    assert counts == {"truncated_file": 1}
    assert lines == [(number, text, True) for number, text in enumerate(LINES[: len(lines)])]
    assert len(lines) > 1000


@pytest.mark.parametrize("suffix", [".json.gz", ".json.xz", ".json.zst"])
def test_a_damaged_stream_is_reported_once(tmp_path, suffix):
    packed = bytearray(packed_text(suffix))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "log"
    path.write_bytes(packed)
    assert sum(read(path)[1].values()) == 1


def test_only_the_last_line_can_lack_its_newline(tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\n  \ntwo")
    assert read(path)[0] == [(0, b"one\r", True), (3, b"two", False)]


def test_a_line_without_end_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(stream.limits, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 64)
    path = tmp_path / "log"
    path.write_bytes(b"one\n" + b"x" * 1000 + b"\ntwo\n")
    lines, counts = read(path)
    assert lines == [(0, b"one", True), (2, b"two", True)]
    assert counts == {"line_too_long": 1}


@pytest.mark.parametrize("suffix", [".json.gz", ".json.xz", ".json.zst"])
def test_a_bomb_gives_its_lines_up_to_a_limit_in_little_memory(tmp_path, monkeypatch, suffix):
    """A hundred kilobytes that become 64 MiB: pieces are small, and the limits end the file."""
    monkeypatch.setattr(stream.limits, "MAX_LINES", 1 << 16)
    monkeypatch.setattr(stream.limits, "MAX_FILE_BYTES", 1 << 24)
    path = tmp_path / "log"
    for bomb, reason in (
        (b"\n" * (1 << 26), "file_too_large"),
        (b"x" * (1 << 26), "line_too_long"),
    ):
        path.write_bytes(PACK[suffix](b"one\n" + bomb))
        tracemalloc.start()
        lines, counts = read(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (lines, counts[reason]) == ([(0, b"one", True)], 1)
        assert counts["file_too_large"] == 1
        assert peak < 80 << 20  # Zstandard's pieces have up to 32 MiB


def test_pieces_of_any_size_give_the_same_lines(tmp_path, monkeypatch):
    """Members, frames and padding across the borders of what is fed and given at once."""
    monkeypatch.setattr(stream.limits, "PIECE_BYTES", 7)
    monkeypatch.setattr(stream.limits, "ZSTD_INPUT_BYTES", 5)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 64)
    for pack in PACK.values():
        path = tmp_path / "log"
        text = b"\n".join(LINES[:50]) + b"\n"
        path.write_bytes(pack(text) + pack(text))
        expected = [(number, piece, True) for number, piece in enumerate([*LINES[:50]] * 2)]
        assert read(path) == (expected, {})


@pytest.mark.parametrize(("content", "reason"), [(b"", "empty_file"), (None, "unreadable_file")])
def test_a_file_that_gives_nothing_is_counted(tmp_path, content, reason):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    assert read(path) == ([], {reason: 1})


def test_the_report_names_file_line_and_reason(tmp_path):
    with Quarantine(tmp_path / "deep" / "report.jsonl") as quarantine:
        quarantine.add(
            file="log", line=7, reason=Reason.NOT_UTF8, detail="byte 3", text=b"ab\xff" * 200
        )
    (entry,) = read_report(tmp_path / "deep" / "report.jsonl")
    assert (entry.file, entry.line, entry.reason, entry.detail) == ("log", 7, "not_utf8", "byte 3")
    assert entry.excerpt.startswith("ab\\xffab")
    assert len(entry.excerpt) < 400


def test_a_report_is_kept_by_a_run_that_fails_and_left_out_by_a_clean_one(tmp_path):
    report = tmp_path / "report.jsonl"
    report.write_text("of an earlier run")
    with pytest.raises(RuntimeError), Quarantine(report):
        raise RuntimeError
    assert report.read_text() == "of an earlier run"
    with Quarantine(report):
        pass
    assert not report.exists()


@pytest.mark.parametrize("suffix", PACK)
def test_byte_order_marks(tmp_path, suffix):
    """UTF-8's is dropped; of UTF-16 the file is set aside, once."""
    path = tmp_path / f"log{suffix}"
    path.write_bytes(PACK[suffix](b"\xef\xbb\xbfone\r\ntwo\r\n"))
    assert [text.strip() for _, text, _ in read(path)[0]] == [b"one", b"two"]
    path.write_bytes(PACK[suffix]("one\ntwo\n".encode("utf-16")))
    assert read(path) == ([], {"not_utf8": 1})
