"""Draw the published costs, time per step of each engine against the least that the arithmetic allows, and tell their
ratios in a page beside them.

python benchmarks/report.py --folder published/bench
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from latreft.files import write_text
from latreft.plots.style import DOUBLE, footer, new_figure, save, styled
from latreft.tables.render import markdown_table

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


def ratio(slow: pd.Series, fast: pd.Series) -> str:
    """Of the medians, with the range that the slowest and fastest repeats allow."""
    low, high = slow["ms_min"] / fast["ms_max"], slow["ms_max"] / fast["ms_min"]
    return f"{slow['ms_median'] / fast['ms_median']:.1f} ({low:.1f} to {high:.1f})"


def by_engine(frame: pd.DataFrame, key: list[str]) -> Iterator[tuple[pd.Series | None, pd.Series | None]]:
    """The rows of the reference and of reuse of every ``key``; None for the one that it lacks."""
    for _, group in frame.groupby(key):
        engines = group.set_index("engine")
        yield tuple(engines.loc[name] if name in engines.index else None for name in ("reference", "reuse"))  # type: ignore[misc]


def cells(rows: Sequence[pd.Series | None], column: str, digits: int) -> list[str]:
    """One column of each row."""
    return ["–" if row is None else f"{row[column]:.{digits}f}" for row in rows]


def steps(costs: pd.DataFrame, limits: pd.DataFrame) -> list[list[str]]:
    """A row a model, method, surrogate and batch."""
    rows = []
    least = limits.set_index(["model", "batch"])["limit_ms"]
    lat = costs[(costs["method"] == "lat") & (costs["engine"] == "reference")].set_index("model")["tflop"]
    for both in by_engine(costs[costs["deterministic"]], ["model", "method", "surrogate", "batch"]):
        slow, fast = both
        one = fast if fast is not None else slow
        assert one is not None
        reft = one["method"] == "lat_reft" and fast is not None
        share = f"{least[one['model'], one['batch']] / one['ms_median']:.0%}" if reft else "–"
        compared = reft and slow is not None and one["model"] in lat.index
        fewer = f"{one['tflop'] / lat[one['model']] - 1:.1%}".replace("-", "−") if compared else "–"
        rows.append(
            [one["model"], one["method"], one["surrogate"], str(one["batch"]), *cells(both, "ms_median", 0),
             "–" if slow is None or fast is None else ratio(slow, fast), share, *cells(both, "tflop", 1), fewer,
             *cells(both, "peak_gib", 1)]
        )  # fmt: skip
    return rows


def attacks(costs: pd.DataFrame) -> list[list[str]]:
    """A row a model and pass of an attack, or whole attack."""
    rows = []
    for slow, fast in by_engine(costs, ["model", "attack"]):
        assert fast is not None
        times = "–" if slow is None else ratio(slow, fast)
        rows.append([fast["model"], fast["attack"], *cells((slow, fast), "ms_median", 1), times])
    return rows


def page(costs: pd.DataFrame, limits: pd.DataFrame, attack_costs: pd.DataFrame) -> str:
    """What the CSV files say, in Markdown."""
    every = pd.concat([costs, attack_costs])
    machines = sorted(
        {f"{device}, torch {version}" for device, version in zip(every["device"], every["torch"], strict=True)}
    )
    first = costs.iloc[0]
    step_head = ["model", "method", "surrogate", "batch", "full passes, ms", "reuse, ms", "ratio", "of the limit",
                 "full, TFLOP", "reuse, TFLOP", "against LAT", "full, GiB", "reuse, GiB"]  # fmt: skip
    attack_head = ["model", "pass", "full passes, ms", "reuse, ms", "ratio"]
    return (
        "\n\n".join(
            [
                "# What a step and an attack cost",
                f"Measured on: {'; '.join(machines)}. Random weights in the public shapes, T = {first['tokens']}, "
                f"L = {first['window']}, K = 8, both engines in turn. Medians; a ratio's range is that of its slowest and "
                "fastest repeats. Made from the CSV files beside it by `python benchmarks/report.py`.",
                "![Time of a step](step_cost.png)",
                "## One training step",
                "The limit is the least time that a LAT-ReFT step can take: the prefix pass's arithmetic at the measured "
                "rate of a large matrix product, and the weights above the attack layer read once a window pass at the "
                "measured bandwidth (`step_limit.csv`); a surrogate's own passes are not in it. `against LAT`: counted FLOPs "
                "against those of a LAT step with full passes. Not all was run both ways: at batch 32 full passes need too "
                "much memory, and in fine-tuning and CAT there is nothing to reuse.",
                markdown_table(pd.DataFrame(steps(costs, limits), columns=step_head), 3),
                "## An attack's passes",
                f"`candidates`: the losses of {attack_costs.iloc[0]['candidates']} candidates behind "
                f"{attack_costs.iloc[0]['content_tokens']} content tokens; `gradient`: one gradient of the attacked tokens; "
                "`gcg_…`: a whole attack on so many texts, so many in flight.",
                markdown_table(pd.DataFrame(attacks(attack_costs), columns=attack_head), 2),
            ]
        )
        + "\n"
    )


def main() -> None:
    """Read the CSV files of a folder, write ``step_cost.pdf``, ``step_cost.png`` and ``README.md`` beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("published/bench"))
    folder = parser.parse_args().folder
    costs, limits, attack_costs = (
        pd.read_csv(folder / name) for name in ("step_cost.csv", "step_limit.csv", "attack_cost.csv")
    )
    save(draw(rows_of(costs, limits)), folder / "step_cost.pdf", folder / "step_cost.png")
    write_text(folder / "README.md", page(costs, limits, attack_costs))


if __name__ == "__main__":
    main()
