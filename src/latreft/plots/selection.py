"""Figure 3b: which rule selects the surrogate's neurons; the paper's three and our two controls."""

from __future__ import annotations

from matplotlib.figure import Figure

from latreft.plots.bars import bar_groups, caption_words, foot_words, legend, places_of, rate_points
from latreft.plots.placement import setting_of
from latreft.plots.style import DOUBLE, GREY, SMALLEST, footer, new_figure, styled
from latreft.tables import names
from latreft.tables.context import Context

SERIES = ("accuracy", "gcg")
CONTROLS = ("random_matched", "act_grad_uniform")
TICKS = {
    "random_matched": "Random,\nActGrad's layer\nbudget",
    "act_grad_uniform": "ActGrad,\nequal layer\nbudget",
}
GAP = 0.35


@styled
def draw(context: Context) -> Figure:
    """Clean accuracy and GCG ASR by rule; the controls stand apart."""
    figure = new_figure(0.72 * DOUBLE, 2.3)
    axes = figure.subplots()
    places = sorted(places_of(context), key=lambda place: place[1]["label"] in CONTROLS)
    labels = [str(cell["label"]) for _, cell in places]
    rules = sum(label not in CONTROLS for label in labels)
    positions = [i + (GAP if i >= rules else 0.0) for i in range(len(labels))]
    ticks = [TICKS.get(label, names.RULES.get(label, label)) for label in labels]
    bar_groups(axes, places, rate_points(context, SERIES), SERIES, ticks, positions)
    if 0 < rules < len(labels):
        edge = rules - 0.5 + GAP / 2
        axes.axvline(edge, color=GREY, linewidth=0.6, linestyle=(0, (3, 3)))
        for x, words, side in ((edge - 0.05, "the paper's rules", "right"), (edge + 0.05, "controls", "left")):
            axes.annotate(
                words, (x, 1.0), (0, 2), xycoords=axes.get_xaxis_transform(), textcoords="offset points", ha=side,
                va="bottom", fontsize=SMALLEST, color=GREY,
            )  # fmt: skip
    legend(figure, context, SERIES)
    footer(figure, foot_words(context, SERIES))
    return figure


def caption(context: Context) -> str:
    """What the figure shows, with scale and n."""
    ratios = {setting_of(context, cell, "pruning_ratio") for _, cell in places_of(context)} - {None}
    pruned = f" at {100 * ratios.pop():g}% pruned" if len(ratios) == 1 else ""
    return caption_words(
        context,
        SERIES,
        f"Clean accuracy and GCG attack success rate by the rule that selects the surrogate's neurons{pruned}.",
        "Controls: random neurons with ActGrad's number in each layer, and ActGrad's best with equal numbers.",
    )
