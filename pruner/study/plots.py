"""What plots of this room share."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter


def plain_log_ticks(axis: Axes) -> None:
    """A logarithmic y axis whose few ticks are plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


@contextmanager
def svg_style(mark: str) -> Iterator[None]:
    """Figures made and written inside are the same whenever `mark` and the data are."""
    style: dict[Any, Any] = {"svg.hashsalt": mark, "svg.fonttype": "none", "font.size": 9}
    with rc_context(style):
        yield


def svg_element(figure: Figure, mark: str) -> str:
    """A figure as one self-contained ``<svg>`` element that names its `mark`."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", bbox_inches="tight", metadata={"Date": None})
    text = stream.getvalue()
    element = text[text.index("<svg") :].replace("<svg", f"<svg role='img' data-of='{mark}'", 1)
    return re.sub(r"[ \t]+\n", "\n", re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.S))
