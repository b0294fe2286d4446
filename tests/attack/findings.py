"""The findings F1, F2, .. of docs/reliability.md, and which tests close each."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "reliability.md"
_TESTS = re.compile(r"`([\w/]+\.py)`(?:: (.+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    file: Path
    words: str = ""

    def has(self, case: str) -> bool:
        file, _, test = case.partition("::")
        wanted = self.file.relative_to(REPOSITORY).as_posix()
        return file == wanted and self.words.replace(" ", "_") in test.partition("[")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    name: str
    found: str
    tests: tuple[Closing, ...]

    def has(self, case: str) -> bool:
        return any(closing.has(case) for closing in self.tests)


def findings() -> list[Finding]:
    rows = re.findall(r"^\| (F\d+) \| (.+) \| .+ \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return [Finding(name=name, found=found, tests=_tests(text)) for name, found, text in rows]


def _tests(text: str) -> tuple[Closing, ...]:
    """``\\`file.py\\`: some words, others; \\`file.py\\`` below tests/."""
    found: list[Closing] = []
    for part in text.split("; "):
        match = _TESTS.fullmatch(part)
        if match is None:
            raise ValueError(f"{PAGE.name}: {part!r} names no test")
        file = REPOSITORY / "tests" / match[1]
        found += [Closing(file=file, words=words) for words in (match[2] or "").split(", ")]
    return tuple(found)


def files_of(found: Sequence[Finding]) -> list[Path]:
    """Where their tests are, but for those beside this file."""
    files = {closing.file for finding in found for closing in finding.tests}
    return sorted(file for file in files if file.parent != Path(__file__).parent)
