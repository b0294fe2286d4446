"""Handle Ctrl-C and SIGTERM: the first ends the run, the second the process."""

import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from pruner.progress import Log

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Raised when a run has ended on request.

    ``result`` is its last line, ``exit_code`` the code that a shell expects.
    """

    def __init__(self, result: Mapping[str, Any], exit_code: int) -> None:
        super().__init__(f"ended early, in {result['run_dir']}")
        self.result, self.exit_code = result, exit_code


class Interrupts:
    """Watches for signals inside ``with``; afterwards the former handlers return.

    Python gives signals to its main thread only: in other threads nothing is watched.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._before: dict[signal.Signals, Any] = {}
        self.caught: signal.Signals | None = None

    def __enter__(self) -> Callable[[], bool]:
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            self._before[number] = signal.signal(number, self._on_signal)
        return lambda: self.caught is not None

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """The shell's exit code after a signal: 130 for Ctrl-C."""
        return 0 if self.caught is None else 128 + self.caught

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        self.caught = signal.Signals(number)
        # A second signal gets the system's default: a handler of ours would wait for the end of a
        # call of TVM, such as the search of MetaSchedule.
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        self._log(f"{self.caught.name}: ending with the results so far; once more ends at once")
