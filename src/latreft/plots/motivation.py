"""Figure 1: a defense of the last token at the last layer against one of a suffix window at an earlier layer."""

from __future__ import annotations

import textwrap

from matplotlib.figure import Figure

from latreft.plots.bars import bar_groups, caption_words, foot_words, legend, places_of, rate_points
from latreft.plots.style import SINGLE, footer, new_figure, styled
from latreft.tables.context import Context

SERIES = ("accuracy", "gcg")


@styled
def draw(context: Context) -> Figure:
    """Clean accuracy and GCG ASR of each placement."""
    figure = new_figure(SINGLE, 2.1)
    axes = figure.subplots()
    places = places_of(context)
    ticks = [textwrap.fill(str(cell["label"]), 14) for _, cell in places]
    bar_groups(axes, places, rate_points(context, SERIES), SERIES, ticks)
    legend(figure, context, SERIES)
    footer(figure, foot_words(context, SERIES))
    return figure


def caption(context: Context) -> str:
    """What the figure shows, with scale and n."""
    return caption_words(context, SERIES, "Clean accuracy and GCG attack success rate by where the defense sits.")
