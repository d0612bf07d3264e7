"""Figure 3a: GCG ASR and training FLOPs by how much of the surrogate is pruned."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from latreft.plots.bars import bar_groups, caption_words, foot_words, legend, places_of, rate_points
from latreft.plots.style import SINGLE, footer, new_figure, series_style, styled
from latreft.tables.context import Context
from latreft.tables.layout import Point, points_of
from latreft.tables.names import LEDGERS

ASR = "gcg"
MEASURED = "cost_measured_flops_per_example"
NO_BASE = "without an unpruned run there are no relative FLOPs"
DEARER = "Measured FLOPs are those of the engine that ran: with prefix reuse a surrogate costs a prefix pass more."


@styled
def draw(context: Context) -> Figure:
    """A group a ratio: GCG ASR, and by each ledger the training FLOPs in percent of the unpruned arm's."""
    figure = new_figure(SINGLE, 2.45)
    axes = figure.subplots()
    places = places_of(context)
    ratios = relative_flops(context)
    ticks = [f"{100 * float(cell['label']):g}" for _, cell in places]
    points = rate_points(context, [ASR]) | flop_points(context)
    bar_groups(axes, places, points, [ASR, *ratios], ticks)
    axes.set_xlabel("MLP neurons pruned from the surrogate (%)")
    axes.set_ylabel("percent (FLOPs: of unpruned)")
    handles = [Patch(label=f"FLOPs, {LEDGERS[ledger]}", **series_style(ledger)) for ledger in ratios]
    legend(figure, context, [ASR], handles, columns=2)
    footer(figure, _foot(context))
    return figure


def relative_flops(context: Context) -> dict[str, list[float]]:
    """FLOPs of each place relative to the unpruned one, by ledger; NaN where a run or the base is missing.

    A ledger that the runs do not report is left out.
    """
    points = points_of(context)
    places = places_of(context)
    base = [number for number, cell in places if float(cell["label"]) == 0]
    ratios: dict[str, list[float]] = {}
    for ledger in LEDGERS:
        values = [float(points[number, "cost", ledger]["value"]) for number, _ in places]
        whole = float(points[base[0], "cost", ledger]["value"]) if base else float("nan")
        missing = any(points[number, "cost", ledger]["missing"] for number, _ in places)
        if missing or any(value == value for value in values):
            ratios[ledger] = [value / whole for value in values]
    return ratios


def flop_points(context: Context) -> dict[tuple[int, str], Point]:
    """The ratios as points to draw."""
    numbers = [number for number, _ in places_of(context)]
    return {
        (number, ledger): {"value": value, "unit": "ratio"}
        for ledger, ratio in relative_flops(context).items()
        for number, value in zip(numbers, ratio, strict=True)
    }


def _foot(context: Context) -> str:
    ratios = relative_flops(context)
    words = foot_words(context, [ASR])
    if not any(value == value for ratio in ratios.values() for value in ratio):
        words += f" {NO_BASE.capitalize()}."
    return words + (f" {DEARER}" if _dearer(ratios) else "")


def _dearer(ratios: dict[str, list[float]]) -> bool:
    """Whether by the operators counted a surrogate takes more than none."""
    return any(value > 1 for value in ratios.get(MEASURED, []))


def caption(context: Context) -> str:
    """What the figure shows, with scale, n and the ratios."""
    places = places_of(context)
    ratios = relative_flops(context)
    listed = []
    for ledger, ratio in ratios.items():
        known = [
            f"{value:.3f} at {100 * float(cell['label']):g}%"
            for value, (_, cell) in zip(ratio, places, strict=True)
            if value == value
        ]
        listed += [f"{LEDGERS[ledger]} {', '.join(known)}"] if known else []
    words = f"Training FLOPs relative to no pruning: {'; '.join(listed)}." if listed else f"{NO_BASE.capitalize()}."
    if _dearer(ratios):
        words += f" {DEARER}"
    shown = "GCG attack success rate by the share of the surrogate's MLP neurons pruned."
    return caption_words(context, [ASR], shown, words)
