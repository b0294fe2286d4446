"""``make attack``: everything under tests/attack, slow tests too, as a table of what held.

A test that tries many things says how many with ``record_property("tried", n)``, and of a partial
success ``("failed", n)``; without them it counts as one. A new attack is a new test here: kills of
running commands belong into ``test_kills.py``.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(slots=True)
class Row:
    """One test function with all its cases."""

    tried: int = 0
    failed: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class Table:
    """Collects the outcome of every case."""

    rows: dict[str, Row] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count one case; what fails before or after it, too."""
        if report.skipped or (report.when != "call" and report.passed):
            return
        name = report.nodeid.partition("[")[0].replace(".py::test_", ": ").replace("_", " ")
        row = self.rows.setdefault(name.rpartition("/")[2].removeprefix("test "), Row())
        properties = dict(report.user_properties)
        tried = int(str(properties.get("tried", 1)))
        row.tried += tried
        row.failed += int(str(properties.get("failed", tried if report.failed else 0)))
        row.seconds += report.duration

    def text(self) -> str:
        """The table as Markdown."""
        lines = ["| attack | tried | held | failed | seconds |", "|---|---|---|---|---|"]
        for name, row in [*self.rows.items(), ("all", self._sum())]:
            held = row.tried - row.failed
            cells = (name, f"{row.tried:,}", f"{held:,}", f"{row.failed:,}", f"{row.seconds:.1f}")
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def _sum(self) -> Row:
        rows = self.rows.values()
        return Row(
            sum(row.tried for row in rows),
            sum(row.failed for row in rows),
            sum(row.seconds for row in rows),
        )


def main() -> int:
    """Run the attack; extra words go to pytest."""
    table = Table()
    folder = str(Path(__file__).parent)
    code = pytest.main(
        ["-q", "--no-header", "-p", "no:cacheprovider", folder, *sys.argv[1:]], [table]
    )
    sys.stdout.write(table.text() + "\n")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
