"""Groups of bars in percent with their intervals; what has no record is a hatched place that says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from latreft.plots.style import BLACK, GREY, PALE, SMALLEST, series_style
from latreft.tables.collect import sizes
from latreft.tables.context import Context
from latreft.tables.layout import ASR_WORDS, Point, points_of

Points = Mapping[tuple[int, str], Point]
"""What is drawn, by the number of the place and the series."""
METRIC = {"accuracy": "accuracy", "finetune": "accuracy"}
GROUP = 0.84
"""Share of a place's width that its bars take."""


def places_of(context: Context, panel: str = "main") -> list[tuple[int, dict[str, Any]]]:
    """Number and cell of each place in a panel.

    Raises ``ValueError`` where one label stands for two arms: a figure shows neither data set nor model of a place.
    """
    chosen = [(number, cell) for number, cell in enumerate(context.places) if cell["panel"] == panel]
    seen: dict[str, dict[str, Any]] = {}
    for _, cell in chosen:
        other = seen.setdefault(str(cell["label"]), cell)
        if other is not cell:
            paths = [f"{c['dataset']}/{c['model']}/{c['arm']}" for c in (other, cell)]
            raise ValueError(
                f"{context.target}, panel {panel!r}: {cell['label']!r} stands for {paths[0]} and {paths[1]}"
            )
    return chosen


def series_title(context: Context, source: str) -> str:
    """Legend entry of a series."""
    return "Clean accuracy" if source in METRIC else f"{context.name('attacks', source)} ASR"


def rate_points(context: Context, series: Sequence[str]) -> dict[tuple[int, str], Point]:
    """Accuracy and ASR of every place by its number and series."""
    return {
        (place, source): point
        for (place, source, metric), point in points_of(context).items()
        if source in series and metric == METRIC.get(source, "asr")
    }


def bar_groups(
    axes: Axes,
    places: Sequence[tuple[int, Mapping[str, Any]]],
    points: Points,
    series: Sequence[str],
    ticks: Sequence[str],
    positions: Sequence[float] | None = None,
) -> None:
    """Draw one group a place and one bar a series (``accuracy``, an attack's name, …), in percent.

    Every artist has a gid that says what it is: ``bar:``, ``interval:``, ``seed:``, ``partial:`` or ``missing:`` with
    panel, label and series (``all`` where a place has nothing).
    """
    at = list(positions if positions is not None else range(len(places)))
    width = GROUP / len(series)
    for x, (number, cell) in zip(at, places, strict=True):
        place = f"{cell['panel']}:{cell['label']}"
        found = {source: points[number, source] for source in series if _known(points.get((number, source)))}
        if not found:
            _missing(axes, x, GROUP, f"{place}:all")
            continue
        for i, source in enumerate(series):
            centre = x + (i - (len(series) - 1) / 2) * width
            if source in found:
                _bar(axes, centre, width, found[source], source, f"{place}:{source}")
            else:
                _missing(axes, centre, width, f"{place}:{source}")
    axes.set_xticks(at, ticks)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(min(at, default=0) - 0.55, max(at, default=0) + 0.55)
    percent_axis(axes)


def percent_axis(axes: Axes) -> None:
    """0 to 100%, with room for an interval's end, and higher where a bar is: relative FLOPs may rise above 100%."""
    top = max([104.0, *(1.04 * patch.get_height() for patch in axes.patches if isinstance(patch, Rectangle))])
    axes.set_ylim(0, top)
    axes.set_yticks(range(0, int(top) + 1, 25))
    axes.set_ylabel("percent")
    axes.grid(axis="y")


def _known(point: Point | None) -> bool:
    return point is not None and point["value"] == point["value"]


def _bar(axes: Axes, x: float, width: float, point: Point, source: str, place: str) -> None:
    axes.bar(x, 100 * point["value"], width, **series_style(source))[0].set_gid(f"bar:{place}")
    if point["unit"] == "rate":
        _interval(axes, x, width, point, place)


def _interval(axes: Axes, x: float, width: float, point: Point, place: str) -> None:
    """The 95% interval; with several seeds also each seed's value, and how many were found if some were not."""
    low, high = 100 * point["ci_low"], 100 * point["ci_high"]
    axes.vlines(x, low, high, color=BLACK, linewidth=0.9, zorder=3).set_gid(f"interval:{place}")
    axes.hlines([low, high], x - 0.12 * width, x + 0.12 * width, color=BLACK, linewidth=0.9, zorder=3)
    seeds = [100 * float(text) for text in point["seed_values"].split(";")]
    if point["seeds_wanted"] > 1:
        spread = [x + 0.5 * width * ((i + 1) / (len(seeds) + 1) - 0.5) for i in range(len(seeds))]
        (dots,) = axes.plot(spread, seeds, "o", color="white", mec=BLACK, mew=0.5, ms=2.2, zorder=4, clip_on=False)
        dots.set_gid(f"seed:{place}")
    if point["seeds"] < point["seeds_wanted"]:
        words = f"{point['seeds']}/{point['seeds_wanted']}"
        top = max(high, *seeds) + 2
        axes.text(x, top, words, ha="center", va="bottom", fontsize=SMALLEST, zorder=5).set_gid(f"partial:{place}")


def _missing(axes: Axes, x: float, width: float, place: str) -> None:
    """A pale, hatched place as high as the axis, with the word in it."""
    low, high = x - width / 2, x + width / 2
    box = axes.axvspan(low, high, facecolor="white", edgecolor=PALE, hatch="\\\\\\\\", linewidth=0.5, zorder=1)
    box.set_gid(f"missing:{place}")
    word = axes.text(
        x, 0.5, "missing", transform=axes.get_xaxis_transform(), rotation=90, ha="center", va="center",
        fontsize=SMALLEST, color=GREY, zorder=2,
    )  # fmt: skip
    word.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})


def legend(
    figure: Figure, context: Context, series: Sequence[str], further: Sequence[Any] = (), columns: int = 0
) -> None:
    """One legend above all panels."""
    handles = [Patch(label=series_title(context, source), **series_style(source)) for source in series]
    figure.legend(
        handles=[*handles, *further], loc="outside upper center", ncols=columns or len(handles) + len(further)
    )


def foot_words(context: Context, series: Sequence[str]) -> str:
    """Scale, data sets, n of the series shown, and what whiskers, dots and fractions are, for the figure's foot."""
    shown = context.pooled[context.pooled["source"].isin(series)]
    counted = sizes(shown, {source: context.source_name(source) for source in series})
    of = context.dataset_words(cell["dataset"] for cell in context.places)
    parts = [context.scale_words, of, counted, "whiskers: 95% Wilson intervals"]
    if context.seeds > 1:
        parts[-1] += " with one seed's n, not of how trainings differ"
        parts.append(f"bars: means over {context.seeds} seeds, dots: single seeds")
    if len(shown[(shown["seeds"] > 0) & (shown["seeds"] < shown["seeds_wanted"])]):
        parts.append("fraction above a bar: seeds found of seeds wanted")
    parts += context.code_words
    return "; ".join(parts) + "."


def caption_words(context: Context, series: Sequence[str], *sentences: str) -> str:
    """The caption: title, what is shown, scale, n and intervals."""
    missing = sorted({str(row["label"]) for row in context.pooled.to_dict("records") if row["missing"]})
    absent = [f"Missing runs: {', '.join(missing)}."] if missing else []
    return " ".join([f"{context.title}.", *sentences, ASR_WORDS, foot_words(context, series), *absent])
