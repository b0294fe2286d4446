import json

import pytest

from pruner.cli.shared.door import run_door
from tests.cli import toy_records
from tests.cli.outcome import Outcome


@pytest.fixture
def toy_root(tmp_path):
    return toy_records.write(tmp_path / "records")


@pytest.fixture
def toy_features(monkeypatch):
    """Features that follow the toy records: the commands are under test here, not the engine."""
    import pruner.features

    monkeypatch.setattr(pruner.features, "featurize_records", toy_records.featurize_records)
    monkeypatch.setattr(pruner.features, "FEATURE_SET_VERSION", "toy-1")


@pytest.fixture
def door(monkeypatch, capsys, tmp_path):
    """Run a door in this process; returns (exit code, last stdout line as JSON, stderr)."""

    def run(name, *arguments):
        monkeypatch.chdir(tmp_path)
        code = 0
        try:
            run_door(name, [*map(str, arguments)])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        lines = out.strip().splitlines()
        result = json.loads(lines[-1]) if lines and code == 0 and lines[-1][0] == "{" else None
        return Outcome(code, result, err + ("" if result else out))

    return run


@pytest.fixture
def command(door, toy_features):
    """`door` with features of toy records."""
    return door


@pytest.fixture
def train(command, toy_root):
    """Train two epochs on toy records of v100; returns as `door`."""

    def run(*arguments):
        given = (f"data.root={toy_root}", "platform=v100", *toy_records.SMALL)
        return command("train", *given, *arguments)

    return run


@pytest.fixture(scope="session")
def _trained():
    return {}


@pytest.fixture
def trained(command, toy_root, tmp_path_factory, _trained):
    """Train a model of toy records of v100, once for the same words; no test may change its run.

    Returns the result, whose paths are absolute, and stderr.
    """

    def trained(*words):
        if words not in _trained:
            folder = tmp_path_factory.mktemp("trained")
            given = (f"data.root={toy_root}", f"outputs={folder}", *toy_records.QUICK, *words)
            result, err = command("train", "platform=v100", *given).done
            _trained[words] = result, err
        return _trained[words]

    return trained


@pytest.fixture
def run(door):
    """Run a door that must succeed; returns its last stdout line as JSON."""

    def run(name, *arguments):
        result, _ = door(name, *arguments).done
        return result

    return run
