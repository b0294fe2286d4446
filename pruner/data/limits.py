"""Limits of the input, each with its reason.

A file that breaks a limit is set aside, not the run. The limits lie far above what tuners write
(public logs: lines up to 1,400 bytes, 37 steps, 24 loops of splits) and low enough that no line and
no file takes more than a bounded time and memory.
"""

# Records are a few kilobytes; a line of this length is parsed in some ten milliseconds.
MAX_LINE_BYTES = 1 << 20
# Of one file: so many records have 8 GB or more. Half a megabyte of Zstandard can hold 10^10.
MAX_LINES = 1 << 24
MAX_FILE_BYTES = 1 << 34  # of one file after decompression: a log that streams through in minutes
# Text of one task file whose records are in memory together: they take ten times as much.
MAX_HELD_BYTES = 1 << 30
# What one step of decompression may give, whatever a few bytes claim to become.
PIECE_BYTES = 1 << 20
# Fed at once: Zstandard has no limit on what comes out; 4 bytes give 128 KiB, at most 32 MiB.
ZSTD_INPUT_BYTES = 1 << 10
XZ_MEMORY_BYTES = 1 << 28  # for the dictionary: `xz -9` takes 65 MiB, a header can claim 4 GiB
MAX_STEPS = 256  # of one program; the work grows faster than their number
MAX_LENGTHS = 64  # of one split: tuners write 3 or 4
MAX_SPLIT_LOOPS = 512  # that all splits of one program make
MAX_DECISIONS = 1024  # of one trace of MetaSchedule: a loop has at most five, a space tens of loops
MAX_TEXT_CHARS = 4096  # of a workload key and of a target: some ten thousand of them are cached
MAX_KEY_DEPTH = 8  # lists within lists of a workload key: shapes and strides need two
MAX_HARDWARE_PARAMS = 64  # numbers that describe a device: Ansor writes 8
# Shapes of step lists that a parser caches; further shapes are checked in full each time.
MAX_STRUCTURES = 1 << 16
MAX_INTEGER = 2**63 - 1  # columns are 64-bit integers
