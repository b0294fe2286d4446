"""Ctrl-C and SIGTERM: the first asks a run to end, the second ends the process."""

import signal
import threading
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType
from typing import Any

from pruner.progress import Tell

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run that was asked to end has ended: with ``result``, and what a shell expects as
    ``exit_code``."""

    def __init__(self, result: Mapping[str, Any], exit_code: int) -> None:
        super().__init__(f"ended early, in {result['run_dir']}")
        self.result, self.exit_code = result, exit_code


class Interrupts:
    """Asked whether it was interrupted, inside ``with``; the handlers before come back after it.

    Python gives signals to its main thread only: in others nothing is heard.
    """

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._before: dict[signal.Signals, Any] = {}
        self.caught: signal.Signals | None = None

    def __enter__(self) -> Callable[[], bool]:
        """Listen."""
        for number in SIGNALS if threading.current_thread() is threading.main_thread() else ():
            self._before[number] = signal.signal(number, self._asked)
        return lambda: self.caught is not None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop listening."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal ended: 130 after Ctrl-C."""
        return 0 if self.caught is None else 128 + self.caught

    def _asked(self, number: int, _: FrameType | None) -> None:
        self.caught = signal.Signals(number)
        # Whoever insists is obeyed by the system: a handler of ours would wait for the end of a
        # call of TVM, such as the search of MetaSchedule.
        for one in SIGNALS:
            signal.signal(one, signal.SIG_DFL)
        self._tell(f"{self.caught.name}: ending with the results so far; once more ends at once")
