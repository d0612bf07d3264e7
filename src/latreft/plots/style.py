"""How every figure looks (a column wide, told apart in grey too) and how it is saved (byte-stable)."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from latreft.files import atomic

SINGLE = 3.3
DOUBLE = 6.8
"""Widths of one and of two columns, in inches."""
SMALLEST = 7
"""Smallest type, in points at final size."""

LINE = 0.125
"""Height of a line at the foot, in inches."""

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLUE, GREEN, ORANGE, SKY, VERMILLION, PURPLE = "#0072B2", "#009E73", "#E69F00", "#56B4E9", "#D55E00", "#CC79A7"
BLACK, GREY, PALE = "#000000", "#595959", "#BFBFBF"

SERIES: dict[str, dict[str, Any]] = {
    "accuracy": {"facecolor": BLUE, "hatch": ""},
    "gcg": {"facecolor": GREEN, "hatch": "////"},
    "random_token": {"facecolor": ORANGE, "hatch": "...."},
    "cost_paper_flops_per_example": {"facecolor": "#E8E8E8", "hatch": ""},
    "cost_uniform_flops_per_example": {"facecolor": "#B0B0B0", "hatch": "----"},
    "cost_measured_flops_per_example": {"facecolor": "#707070", "hatch": ""},
}
"""Bars by source or ledger; colours as in the paper's Figure 2: accuracy blue, GCG green, RandomToken yellow."""
OTHER = {"facecolor": PURPLE, "hatch": "xxxx"}
RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 7.5,
    "axes.labelsize": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "xtick.labelsize": SMALLEST,
    "ytick.labelsize": SMALLEST,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "legend.fontsize": SMALLEST,
    "legend.frameon": False,
    "legend.handlelength": 1.6,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "patch.linewidth": 0.5,
    "pdf.fonttype": 42,
    "svg.hashsalt": "latreft",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}

F = TypeVar("F", bound=Callable[..., Any])


def styled(function: F) -> F:
    """Run ``function`` with the figures' settings on top of Matplotlib's own defaults, whatever the user has set."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(RC)  # type: ignore[arg-type]
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of ``width`` × ``height`` inches that draws with Agg and lays itself out."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def series_style(source: str) -> dict[str, Any]:
    """Colour and hatch of a series of bars."""
    return SERIES.get(source, OTHER) | {"edgecolor": BLACK, "linewidth": 0.5}


def footer(figure: Figure, text: str) -> Artist:
    """The small lines at the foot of every figure: scale, n, what the intervals are. The figure grows by them."""
    lines = textwrap.wrap(text, width=int(figure.get_figwidth() * 18.5))
    figure.set_figheight(figure.get_figheight() + LINE * len(lines))
    return figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=SMALLEST, color=GREY)


@styled
def save(figure: Figure, pdf: str | Path, png: str | Path, dpi: int = 300) -> None:
    """Write both forms, each whole or not at all; equal figures give equal bytes (no time, no software version)."""
    with atomic(pdf) as temporary:
        figure.savefig(temporary, format="pdf", metadata={"CreationDate": None, "Producer": None, "Creator": None})
    with atomic(png) as temporary:
        figure.savefig(temporary, format="png", dpi=dpi, metadata={"Software": None})
