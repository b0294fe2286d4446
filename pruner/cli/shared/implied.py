"""Complete a command line by implied options, for runs and ``--help``."""

from collections.abc import Sequence
from pathlib import Path

HELP = {"-h", "--help"}
# Option that a bare word or path gives.
POSITIONAL = {"compare": "runs", "get": "set", "import_checkpoint": "file"}
ONLY_INPUT = "input="  # of a file: its shape is a size like any other
NETWORK_POLICY = "policy=pruner_network"  # of tune.py network=, unless a policy is chosen ...
CHOOSERS = {"policy", "resume", "plot", "experiment"}  # ... by an option that brings its own
LOCAL = "cpu"  # platform=cpu: the described CPU that fits this machine
_ABSENT = ("null", "")  # values of an option that is not given after all


def full_words(command: str, words: Sequence[str]) -> list[str]:
    """Complete the words of a command line by all implied words.

    Raises:
        PrunerError: tune.py is to tune for this machine, whose CPU no platform describes.
    """
    if option := POSITIONAL.get(command):
        return _named(option, words)
    if command != "tune":
        return list(words)
    words = [f"sizes.{word}" if word.startswith(ONLY_INPUT) else word for word in words]
    pairs = (word.lstrip("+").partition("=") for word in words)
    given = {name for name, _, value in pairs if value not in _ABSENT}
    network = [NETWORK_POLICY] if "network" in given and not given & CHOOSERS else []
    return [*network, *with_local_platform(words)]


def with_local_platform(words: Sequence[str]) -> list[str]:
    """Add this machine's CPU where no other platform is named.

    Raises:
        PrunerError: this CPU has the instructions of no described platform.
    """
    from pruner.tune.measure.targets import local_platform

    given = [word for word in words if word.startswith("platform=")]
    unasked = any(word in HELP or word.startswith(("resume=", "plot=")) for word in words)
    if given != [f"platform={LOCAL}"] and (given or unasked):
        return list(words)
    rest = [word for word in words if word not in given]
    host = [] if any(word.startswith("target=") for word in rest) else ["target=host"]
    return [*rest, f"platform={local_platform()}", *host]


def _named(option: str, words: Sequence[str]) -> list[str]:
    """Convert bare paths to a value of `option`.

    A path that exists may contain an equals sign.
    """
    bare = [w for w in words if w[:1] != "-" and ("=" not in w or Path(w).exists())]
    quoted = ["'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in bare]
    value = quoted[0] if option != "runs" and len(bare) == 1 else f"[{','.join(quoted)}]"
    return [*(w for w in words if w not in bare), *([f"{option}={value}"] if bare else [])]
