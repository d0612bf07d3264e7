"""Draw the published step costs: time per step of each engine, against the least that the arithmetic allows.

python benchmarks/step_figure.py --folder published/bench
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from latreft.plots.style import DOUBLE, footer, new_figure, save, styled

SHADES = {"reference": "#bdbdbd", "reuse": "#0072B2"}
WORDS = {"reference": "full passes", "reuse": "exact prefix reuse"}


def rows_of(costs: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """LAT-ReFT without a surrogate at the batch size that both engines ran, a row a model and engine, with the limit.

    Raises ``ValueError`` where rows of two devices would stand side by side.
    """
    chosen = costs[(costs["method"] == "lat_reft") & (costs["surrogate"] == "none") & costs["deterministic"]]
    both = chosen.groupby(["model", "batch"])["engine"].transform("nunique") == 2
    chosen = chosen[both].merge(limits[["model", "batch", "limit_ms"]], on=["model", "batch"], how="left")
    if chosen["device"].nunique() > 1:
        raise ValueError(f"rows of several devices cannot be compared: {sorted(chosen['device'].unique())}")
    return chosen


@styled
def draw(rows: pd.DataFrame) -> Figure:
    """Bars of the median with whiskers from min to max, on a logarithmic axis; a line marks the limit."""
    figure = new_figure(DOUBLE, 2.6)
    axes = figure.subplots()
    models = list(dict.fromkeys(rows.sort_values("ms_median", ascending=False)["model"]))
    for place, model in enumerate(models):
        for offset, engine in ((-0.19, "reference"), (0.19, "reuse")):
            row = rows[(rows["model"] == model) & (rows["engine"] == engine)].iloc[0]
            middle = row["ms_median"]
            spread = [[middle - row["ms_min"]], [row["ms_max"] - middle]]
            axes.bar(place + offset, middle, 0.36, color=SHADES[engine], edgecolor="black", linewidth=0.6,
                     yerr=spread, error_kw={"capsize": 2, "linewidth": 0.9},
                     label=WORDS[engine] if place == 0 else None)  # fmt: skip
            axes.annotate(f"{middle:.0f} ms", (place + offset, row["ms_max"]), (0, 3), textcoords="offset points",
                          ha="center", fontsize=7)  # fmt: skip
        limit = rows[rows["model"] == model]["limit_ms"].iloc[0]
        axes.hlines(limit, place - 0.42, place + 0.42, color="#D55E00", linewidth=1.5, linestyle="--",
                    label="limit" if place == 0 else None)  # fmt: skip
    axes.set_yscale("log")
    axes.set_ylim(top=rows["ms_max"].max() * 2.2)
    axes.set_xticks(range(len(models)), models)
    axes.set_ylabel("one LAT-ReFT step (ms)")
    axes.legend(loc="upper right", frameon=False, ncols=3)
    first = rows.iloc[0]
    footer(
        figure,
        f"{first['device']}, batch {first['batch']}, T = {first['tokens']}, L = {first['window']}, K = 8, random weights "
        "in the public shapes; median, whiskers from minimum to maximum.",
    )
    return figure


def main() -> None:
    """Read the two files, write ``step_cost.pdf`` and ``.png`` beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("published/bench"))
    folder = parser.parse_args().folder
    rows = rows_of(pd.read_csv(folder / "step_cost.csv"), pd.read_csv(folder / "step_limit.csv"))
    save(draw(rows), folder / "step_cost.pdf", folder / "step_cost.png")


if __name__ == "__main__":
    main()
