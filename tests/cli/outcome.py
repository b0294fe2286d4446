"""What a command is given, and how it ended."""

from types import SimpleNamespace
from typing import NamedTuple

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from pruner.cli.shared import runs
from tests.paths import CONF


class Outcome(NamedTuple):
    """Exit code, last line of stdout as JSON, stderr."""

    code: int
    result: dict | None
    err: str

    @property
    def done(self):
        """JSON and stderr of a command that succeeded."""
        assert self.code == 0, self.err
        return self.result, self.err

    @property
    def refusal(self):
        """Stderr of a command that was refused: code 2 and one line of error, no traceback."""
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert (self.code, len(errors), "Traceback" in self.err) == (2, 1, False), self.err
        return self.err


def composed(command, *words, whole=False):
    """The configuration as Hydra composes it; `whole`: with Hydra's own options."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(command, list(words), return_hydra_config=whole)


def give_words(monkeypatch, *words):
    """Have a command believe that these words were given."""
    overrides = SimpleNamespace(overrides=SimpleNamespace(task=list(words)))
    monkeypatch.setattr(runs.HydraConfig, "get", lambda: overrides)
