"""Markdown tables of text cells, and means with their spread."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def markdown_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table of `head` and `rows`."""
    first, *others = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    return "\n".join([first, "|" + "---|" * len(head), *others])


def mean_text(
    values: "Sequence[float] | pd.Series[float]", digits: int = 3, *, spread: bool = True
) -> str:
    """Return the mean, with the sample standard deviation of several values."""
    if not len(values):
        return ""
    text = f"{np.mean(values):.{digits}f}"
    more = spread and len(values) > 1
    return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if more else text
