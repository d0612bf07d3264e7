"""Figure 2: (a) how long the suffix window is, (b) at which layer the edit sits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from latreft.plots.bars import bar_groups, caption_words, foot_words, legend, places_of, rate_points
from latreft.plots.style import DOUBLE, footer, new_figure, styled
from latreft.tables.context import Context

SERIES = ("accuracy", "gcg", "random_token")
PANELS = {"window": "(a) Suffix window", "layer": "(b) Layer of the edit"}


@styled
def draw(context: Context) -> Figure:
    """Two panels: clean accuracy, GCG and RandomToken ASR by window length and by layer."""
    figure = new_figure(DOUBLE, 2.15)
    counts = [max(1, len(places_of(context, panel))) for panel in PANELS]
    panels = figure.subplots(1, 2, sharey=True, width_ratios=counts)
    for axes, (panel, title) in zip(panels, PANELS.items(), strict=True):
        places = places_of(context, panel)
        ticks = [_tick(context, panel, cell) for _, cell in places]
        bar_groups(axes, places, rate_points(context, SERIES), SERIES, ticks)
        axes.set_title(title)
        axes.set_xlabel("window L (last tokens)" if panel == "window" else "ReFT layer")
    panels[1].set_ylabel("")
    figure.align_xlabels(panels)
    legend(figure, context, SERIES)
    footer(figure, foot_words(context, SERIES))
    return figure


def _tick(context: Context, panel: str, cell: Mapping[str, Any]) -> str:
    """The label; a named layer with its number, once a run has said it."""
    label = str(cell["label"])
    layer = setting_of(context, cell, "reft_layer")
    return label if panel == "window" or layer is None or label == str(layer) else f"{label}\n(layer {layer})"


def setting_of(context: Context, cell: Mapping[str, Any], setting: str) -> Any:
    """A setting of the arm as its training record has it; None where there is no record or no such setting."""
    own = tuple(cell[key] for key in ("dataset", "model", "method", "arm"))
    for record in context.records:
        if record.kind == "train" and (record.dataset, record.model.name, record.method, record.arm) == own:
            return record.settings.get(setting)
    return None


def caption(context: Context) -> str:
    """What the figure shows, with scale and n."""
    fixed = {
        panel: {setting_of(context, cell, setting) for _, cell in places_of(context, panel)} - {None}
        for panel, setting in (("window", "reft_layer"), ("layer", "window"))
    }
    layer = f", layer {fixed['window'].pop()}" if len(fixed["window"]) == 1 else ""
    window = f", L = {fixed['layer'].pop()}" if len(fixed["layer"]) == 1 else ""
    return caption_words(
        context,
        SERIES,
        f"(a) Number of last tokens that the edit covers{layer}. (b) Layer at which the edit sits{window}.",
    )
