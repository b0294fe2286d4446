"""Tables of pages: cells of text as Markdown, means with their spread."""

from collections.abc import Sequence

import numpy as np
import pandas as pd


def markdown_table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    """Return a table, a line for its heads, one of dashes and one for each row."""
    first, *others = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    return "\n".join([first, "|" + "---|" * len(head), *others])


def mean_text(
    values: "Sequence[float] | pd.Series[float]", digits: int = 3, *, spread: bool = True
) -> str:
    """Return the mean, with the sample standard deviation behind it where there are several."""
    if not len(values):
        return ""
    text = f"{np.mean(values):.{digits}f}"
    more = spread and len(values) > 1
    return f"{text} ± {np.std(values, ddof=1):.{digits}f}" if more else text
