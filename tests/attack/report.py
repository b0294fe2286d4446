"""``make attack``: everything under tests/attack, slow tests too, as a table of what held.

A test that tries many things says how many with ``record_property("tried", n)``, and how many
``"failed"``; without them it counts as one. What came of a case is a file in a folder of its commit
and sizes, so the same command goes on where it was ended, and parts make one table.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pruner.files import write_atomic, write_json
from tests.attack.findings import Finding, files_of, findings
from tests.attack.sizes import SIZES
from tests.paths import REPOSITORY

OUT = REPOSITORY / "outputs" / "attack"
TABLE = "attack.md"
_WRITE_S = 10.0  # the table is written at most so often


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What came of one case of a test; ``told``: why it failed or was left out."""

    name: str
    tried: int
    failed: int
    seconds: float
    left_out: bool = False
    told: str = ""
    commit: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attack(self) -> str:
        name = self.short.partition("[")[0].replace(".py::test_", ": ").replace("_", " ")
        return name.removeprefix("test ")

    @property
    def short(self) -> str:
        return short(self.name)


def short(name: str) -> str:
    file, _, test = name.partition("::")
    return f"{Path(file).name}::{test}"


def case_of(report: pytest.TestReport, commit: str = "") -> Case:
    notes = dict(report.user_properties)
    tried = int(str(notes.pop("tried", 1)))
    failed = max(int(str(notes.pop("failed", 0))), int(report.failed))
    told = report.longreprtext.strip().splitlines() if report.failed else []
    told = [line.removeprefix("E").strip() for line in told if line.startswith("E ")] or told[-1:]
    if report.skipped:
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else "left out"
        told = str(why).splitlines()[:1]
    return Case(
        name=report.nodeid,
        tried=0 if report.skipped else tried,
        failed=min(failed, tried),
        seconds=report.duration,
        left_out=report.skipped,
        told=" ".join(told)[:300],
        commit=commit,
        notes={k: v for k, v in notes.items() if isinstance(v, int | float)},  # others are plugins'
    )


class Results:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def cases(self) -> list[Case]:
        found = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        return sorted((Case(**row) for row in found), key=lambda case: case.name)

    def keep(self, case: Case) -> None:
        name = re.sub(r"[^\w.-]+", "-", case.short)[:80]
        write_json(self.folder / f"{name}-{zlib.crc32(case.name.encode()):08x}.json", asdict(case))

    def held(self) -> set[str]:
        return {case.name for case in self.cases() if not (case.failed or case.left_out)}


def table(
    cases: Sequence[Case],
    waiting: Iterable[str] = (),
    found: Sequence[Finding] = (),
    others: int = 0,
) -> str:
    """A row a test of the attack with all its cases, a row a finding; then what failed, was left
    out and has not been run. `others`: how many cases wait in parts that are run elsewhere.
    """
    waits = list(waiting)
    elsewhere = {str(file.relative_to(REPOSITORY)) for file in files_of(found)}
    attacks = [case for case in cases if case.name.partition("::")[0] not in elsewhere]
    names = sorted({case.attack for case in attacks})
    rows = {name: [case for case in attacks if case.attack == name] for name in names}
    lines = [_HEAD.format("attack"), _RULE]
    lines += [_row(name, row) for name, row in [*rows.items(), ("all", attacks)]]
    if found:
        lines += ["", _HEAD.format("finding"), _RULE]
    for finding in found:
        left = sum(finding.has(name) for name in waits)
        text = f"{finding.name} {finding.found}" + (f" ({left} tests not run yet)" if left else "")
        lines.append(_row(text, [case for case in cases if finding.has(case.name)]))
    noted = [f"* {c.attack}: {_words(c.notes)}" for c in cases if c.notes]
    wrong = [f"* FAILED {c.short}: {c.told}" for c in cases if c.failed]
    unable = Counter(f"* left out: {c.attack}: {c.told}" for c in cases if c.left_out)
    left_out = [f"{why} ({n} cases)" if n > 1 else why for why, n in sorted(unable.items())]
    later = [f"* not run yet: {short(name)}" for name in waits]
    later += [f"* not run yet, of other parts: {others} cases"] if others else []
    return "\n".join([*lines, "", *noted, *wrong, *left_out, *later]).strip() + "\n"


_TITLE = "# What was tried, held and failed"
_HEAD, _RULE = "| {} | tried | held | failed | seconds |", "|---|---|---|---|---|"


def _row(name: str, cases: Sequence[Case]) -> str:
    tried, failed = sum(case.tried for case in cases), sum(case.failed for case in cases)
    seconds = sum(case.seconds for case in cases)
    return f"| {name} | {tried:,} | {tried - failed:,} | {failed:,} | {seconds:.1f} |"


def _words(notes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in notes.items())


def commit() -> str:
    """What is checked out; changes that are in no commit have a number of their own."""
    try:
        name = _git("rev-parse", "--short=10", "HEAD").decode().strip()
        changes = _git("diff", "HEAD")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{name}-changed-{zlib.crc32(changes):08x}" if changes else name


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, check=True).stdout


def about(cases: Sequence[Case]) -> str:
    commits = ", ".join(sorted({case.commit for case in cases}))
    sizes = ", ".join(f"{number} {what}" for what, number in SIZES.items())
    machine = f"Python {platform.python_version()}, {os.cpu_count()} cores"
    return f"Commit {commits}; {sizes}; {machine}; {time.strftime('%Y-%m-%d')}."


class Plugin:
    """Keeps what came of every case, and passes over those that held before."""

    def __init__(
        self,
        results: Results,
        commit: str,
        seconds: float,
        copy: Path | None,
        found: Sequence[Finding] = (),
    ) -> None:
        self._results, self._commit, self._copy = results, commit, copy
        self._found, self._elsewhere = found, set(files_of(found))
        self._end, self._written = time.monotonic() + seconds, 0.0
        self._session: pytest.Session | None = None
        self._all: set[str] = set()
        self.waiting: list[str] = []

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what held before, and what closes no finding in files of other tests; then
        other words of pytest may choose a part of it."""
        held = self._results.held()
        kept = [item for item in items if item.nodeid not in held and self._belongs(item)]
        if len(kept) < len(items):
            known = set(kept)
            config.hook.pytest_deselected(items=[item for item in items if item not in known])
            items[:] = kept
        self._all = {item.nodeid for item in kept}

    def _belongs(self, item: pytest.Item) -> bool:
        return item.path not in self._elsewhere or any(
            finding.has(item.nodeid) for finding in self._found
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.waiting = [item.nodeid for item in session.items]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.passed:
            return
        self._results.keep(case_of(report, self._commit))
        self.waiting = [name for name in self.waiting if name != report.nodeid]
        if time.monotonic() > self._written + _WRITE_S:
            self.write()

    def pytest_runtest_logfinish(self) -> None:
        if self._session is not None and time.monotonic() > self._end:
            self._session.shouldstop = "the time is over; the same command goes on"

    def write(self) -> str:
        """The table, into the folder and wherever it was asked for."""
        self._written = time.monotonic()
        cases = self._results.cases()
        others = self._all - {case.name for case in cases} - {*self.waiting}
        text = (
            f"{_TITLE}\n\n{about(cases)}\n\n{table(cases, self.waiting, self._found, len(others))}"
        )
        for path in (self._results.folder / TABLE, self._copy):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                with write_atomic(path) as partial:
                    partial.write_text(text)
        return text


def main() -> int:
    asked, name = os.environ.get, commit()
    sizes = "-".join(f"{what}-{number}" for what, number in SIZES.items())
    results = Results(OUT / (asked("ATTACK_RUN") or f"{name}-{sizes}"))
    copy, seconds = asked("ATTACK_TABLE"), float(asked("ATTACK_SECONDS") or "inf")
    found = findings()
    plugin = Plugin(results, name, seconds, Path(copy) if copy else None, found)
    only = ["-k", asked("ATTACK_ONLY", "")] if asked("ATTACK_ONLY") else []
    words = ["-v", "--no-header", "-p", "no:cacheprovider", *only, *sys.argv[1:]]
    where = [str(Path(__file__).parent), *map(str, files_of(found))]
    code = int(pytest.main([*words, *where], [plugin]))
    sys.stdout.write(f"\n{plugin.write()}\nThe table: {results.folder / TABLE}\n")
    nothing_left = code == pytest.ExitCode.NO_TESTS_COLLECTED and results.cases()
    return 0 if nothing_left and not any(case.failed for case in results.cases()) else code


if __name__ == "__main__":
    sys.exit(main())
