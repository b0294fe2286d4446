"""What plots of this room share."""

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter


def plain_log_ticks(axis: Axes) -> None:
    """A logarithmic y axis whose few ticks are plain numbers."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 5, 10]))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
