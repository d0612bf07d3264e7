"""Figures 3c, 4 and 5: which neurons of which layers the surrogate keeps, by ActGrad and by ActDiff."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from latreft.plots.style import DOUBLE, GREY, PALE, SKY, SMALLEST, VERMILLION, footer, new_figure, styled
from latreft.tables.context import Context
from latreft.tables.names import RULES

SHOWN = {"act_grad": "keep_act_grad", "act_diff": "keep_act_diff"}
"""Rule → the tensor of the score file that holds its keep mask (uint8 [layers, neurons])."""
COLUMNS = 256
COLOURS = "cividis"
Mask = NDArray[np.uint8]


def read_masks(path: Path) -> dict[str, Mask] | None:
    """Keep masks [layers, neurons] by rule; None where the file is missing.

    Raises ``ValueError`` naming file and tensor where a mask is missing or holds anything but 0 and 1.
    """
    if not path.is_file():
        return None
    from safetensors.numpy import load_file

    tensors = load_file(path)
    masks = {}
    for rule, name in SHOWN.items():
        if name not in tensors:
            raise ValueError(f"{path} has no tensor {name!r}; rerun the rule that scores neurons")
        mask = tensors[name].astype(np.uint8)
        if mask.ndim != 2 or mask.size == 0 or mask.max() > 1:
            raise ValueError(f"{path}: {name} must be zeros and ones of shape [layers, neurons], got {mask.shape}")
        masks[rule] = mask
    return masks


def binned(mask: Mask, columns: int = COLUMNS) -> NDArray[np.float64]:
    """Kept share [layers, bins] of neighbouring neurons, at most ``columns`` equal bins; the last may be narrower."""
    neurons = mask.shape[1]
    width = -(-neurons // columns)
    starts = np.arange(0, neurons, width)
    counts = np.diff(np.append(starts, neurons))
    shares: NDArray[np.float64] = np.add.reduceat(mask.astype(np.int64), starts, axis=1) / counts
    return shares


def layer_shares(mask: Mask) -> NDArray[np.float64]:
    """Kept share of each layer."""
    shares: NDArray[np.float64] = mask.mean(axis=1, dtype=np.float64)
    return shares


@styled
def draw(context: Context) -> Figure:
    """One row a model; in it each rule's map, with a strip of every layer's kept share on its right."""
    models = _models(context)
    figure = new_figure(DOUBLE, 0.8 + 1.35 * max(1, len(models)))
    grid = figure.subplots(
        max(1, len(models)), 4, squeeze=False, width_ratios=[5, 1.1, 5, 1.1], gridspec_kw={"wspace": 0.02}
    )
    for number, (title, masks) in enumerate(models):
        row = grid[number]
        for i, rule in enumerate(SHOWN):
            wide, strip = row[2 * i], row[2 * i + 1]
            if masks is None:
                _missing(wide, strip)
            else:
                _map(wide, masks[rule])
                _strip(strip, layer_shares(masks[rule]))
            if number == 0:
                wide.set_title(f"({'ab'[i]}) {RULES[rule]}")
                strip.set_title("kept %", fontsize=SMALLEST, loc="center")
        row[0].set_ylabel(f"{title}\nlayer")
    figure.align_ylabels(grid[:, 0])
    shares = ScalarMappable(Normalize(0, 1), COLOURS)
    bar = figure.colorbar(shares, ax=grid, location="right", fraction=0.02, pad=0.01, aspect=30)
    bar.set_label("kept share of a bin")
    bar.set_ticks([0, 0.5, 1], labels=["0%", "50%", "100%"])
    bar.outline.set_linewidth(0.5)  # type: ignore[operator]
    footer(figure, foot_words(context))
    return figure


def _models(context: Context) -> list[tuple[str, dict[str, Mask] | None]]:
    """Title and masks of each model, in the order of the files."""
    return [(context.name("models", _place(path)[1]), read_masks(path)) for path in context.scores]


def _place(path: Path) -> tuple[str, str]:
    """Data set and model of a score file, by where it lies (``artefacts.SCORES``)."""
    return path.parts[-4], path.parts[-3]


def _layer_axis(axes: Axes, layers: int) -> None:
    """Layer 1 at the top; ticks at the first, the middle and the last."""
    axes.set_ylim(layers + 0.5, 0.5)
    axes.set_yticks(sorted({1, (layers + 1) // 2, layers}))


def _ends(axes: Axes, ticks: dict[float, str]) -> None:
    """Labels below the axis, the outer ones kept within its ends."""
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.tick_params(axis="x", length=0)
    labels = axes.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[-1].set_horizontalalignment("right")


def _map(axes: Axes, mask: Mask) -> None:
    shares = binned(mask)
    layers, neurons = mask.shape
    extent = (0.5, neurons + 0.5, layers + 0.5, 0.5)
    image = axes.imshow(shares, cmap=COLOURS, vmin=0, vmax=1, aspect="auto", interpolation="nearest", extent=extent)
    image.set_gid("map")
    axes.spines[:].set_visible(False)
    width = -(-neurons // COLUMNS)
    words = "MLP neuron" + (f", in bins of {width}" if width > 1 else "")
    _ends(axes, {1: "1", (1 + neurons) / 2: words, neurons: f"{neurons:,}"})
    _layer_axis(axes, layers)


def _strip(axes: Axes, shares: NDArray[np.float64]) -> None:
    """Kept share of each layer; a layer without any neuron has a mark in place of its bar."""
    layers = np.arange(1, len(shares) + 1)
    bars = axes.barh(layers, 100 * shares, height=1.0, color=SKY, edgecolor="white", linewidth=0.25)
    for layer, bar in zip(layers, bars, strict=True):
        bar.set_gid(f"share:{layer}")
    emptied = layers[shares == 0]
    if len(emptied):
        (marks,) = axes.plot(
            np.full(len(emptied), 5), emptied, ">", color=VERMILLION, ms=3.5, mec="none", clip_on=False, zorder=4
        )
        marks.set_gid("emptied")
    axes.set_xlim(0, 100)
    _ends(axes, {0: "0", 100: "100"})
    _layer_axis(axes, len(shares))
    axes.set_yticks([])


def _missing(wide: Axes, strip: Axes) -> None:
    """Both places hatched, and the word in the larger."""
    for axes in (wide, strip):
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        axes.spines[:].set_visible(False)
        axes.axvspan(0, 1, facecolor="white", edgecolor=PALE, hatch="\\\\\\\\", linewidth=0.5).set_gid("missing")
    word = wide.text(0.5, 0.5, "missing", ha="center", va="center", fontsize=SMALLEST, color=GREY)
    word.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 1})


def foot_words(context: Context) -> str:
    """Scale, data set, calibration size where records say it, and how many neurons are kept."""
    found = [masks for _, masks in _models(context) if masks is not None]
    kept = sorted({f"{100 * masks[rule].mean():.0f}%" for masks in found for rule in SHOWN})
    sizes = sorted({str(r.settings["calibration"]) for r in context.records if "calibration" in r.settings})
    parts = [
        context.scale_words,
        context.dataset_words(_place(path)[0] for path in context.scores),
        *([f"n = {' or '.join(sizes)} calibration examples"] if sizes else []),
        f"{' or '.join(kept)} of all neurons kept" if kept else "no scores yet",
    ]
    emptied = any((layer_shares(mask) == 0).any() for masks in found for mask in masks.values())
    return "; ".join([*parts, *(["red mark: a layer without any neuron"] if emptied else [])]) + "."


def caption(context: Context) -> str:
    """What the figure shows, with scale, calibration size and kept shares."""
    missing = [title for title, masks in _models(context) if masks is None]
    absent = [f"Missing: {', '.join(missing)}."] if missing else []
    words = (
        "Share of neurons kept in bins of neighbouring neurons (not sorted), layer 1 at the top; the strip beside each "
        "map is the kept share of the layer."
    )
    return " ".join([f"{context.title}.", words, foot_words(context), *absent])
