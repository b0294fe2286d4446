"""The platform that options name, where its programs run, and what drafts for it."""

from typing import Any

from omegaconf import DictConfig

from pruner.cli.shared.options import plain
from pruner.cli.shared.output import say
from pruner.errors import PrunerError
from pruner.models.analyzer.analyzer import Analyzer
from pruner.program.device import device_from_mapping
from pruner.tune.measure.jobs import RpcAddress
from pruner.tune.measure.machine import make_platform
from pruner.tune.measure.measurer import Platform
from pruner.tune.run.options import platform_analyzer


def platform_of(config: DictConfig, target: Any) -> Platform:
    """The described platform for a target (None: its own); no device is asked.

    Raises:
        PrunerError: a target that TVM does not know, or a remote device without a name.
    """
    address = None
    if config.runner.kind == "rpc":
        names = ("host", "port", "key", "session_timeout_s")
        address = RpcAddress(**{name: config.runner[name] for name in names})
    device = device_from_mapping(plain(config.platform))
    return make_platform(device, target=target, address=address)


def load_draft(platform: Platform) -> Analyzer | None:
    """The platform's analyzer; None where there is none, which is told."""
    try:
        return platform_analyzer(platform)
    except PrunerError as error:
        say(f"no draft: {error}")
        return None
