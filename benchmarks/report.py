"""Draw the published costs, time per step of each engine against the least that the arithmetic allows, and tell their
ratios in a page beside them.

PYTHONPATH=src python benchmarks/report.py --folder published/bench
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from step_cost import layers_of

from latreft.files import write_text
from latreft.plots.style import DOUBLE, footer, new_figure, save, styled
from latreft.tables.render import NONE, markdown_table

SHADES = {"reference": "#bdbdbd", "reuse": "#0072B2"}
FILES = ("step_cost.csv", "step_limit.csv", "attack_cost.csv")
WORDS = {"reference": "full passes", "reuse": "exact prefix reuse"}


def rows_of(costs: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """LAT-ReFT without a surrogate at the batch size that both engines ran, a row a model and engine, with the limit;
    of reuse the compiled row, where there is one.

    Raises ``ValueError`` where rows of two devices would stand side by side.
    """
    chosen = costs[(costs["method"] == "lat_reft") & (costs["surrogate"] == "none") & costs["deterministic"]]
    chosen = chosen[chosen["engine"].isin(WORDS)]
    chosen = chosen.sort_values("compiled").groupby(["model", "batch", "engine"], as_index=False).last()
    both = chosen.groupby(["model", "batch"])["engine"].transform("nunique") == 2
    chosen = chosen[both].merge(limits[["model", "batch", "limit_ms"]], on=["model", "batch"], how="left")
    one_device(chosen)
    return chosen


@styled
def draw(rows: pd.DataFrame) -> Figure:
    """Bars of the median with whiskers from min to max, on a logarithmic axis; a line marks the limit."""
    figure = new_figure(DOUBLE, 2.6)
    axes = figure.subplots()
    models = list(dict.fromkeys(rows.sort_values("tflop", ascending=False)["model"]))
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
        f"{first['device']}, batch {first['batch']}, T = {first['tokens']}, L = {first['window']}, K = 8, no surrogate, "
        f"random weights in these models' shapes; full passes eager, reuse {how_run(rows)}; median, whiskers from minimum "
        "to maximum.",
    )
    return figure


def how_run(rows: pd.DataFrame) -> str:
    """What was done to the passes of reuse, and to which models' it was not."""
    reuse = rows[rows["engine"] == "reuse"]
    if on_cpu(reuse.iloc[0]["device"]):
        return "eager, too"
    plain = list(reuse[~reuse["compiled"]]["model"])
    if len(plain) == len(reuse):
        return "captured"
    return "captured and compiled" + (f" ({', '.join(plain)}: captured only)" if plain else "")


def on_cpu(device: str) -> bool:
    """Where nothing is captured or compiled."""
    return device == "CPU"


def ratio(slow: pd.Series, fast: pd.Series, digits: int = 1) -> str:
    """Of the medians, with the range that the slowest and fastest repeats allow."""
    low, high = slow["ms_min"] / fast["ms_max"], slow["ms_max"] / fast["ms_min"]
    return f"{slow['ms_median'] / fast['ms_median']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


Pair = tuple[pd.Series | None, pd.Series | None]


def by_engine(frame: pd.DataFrame, key: list[str]) -> Iterator[Pair]:
    """Of every ``key``, the reference's row with each of reuse's (compiled and not); None for what it lacks."""
    for _, group in frame.groupby(key):
        slow = [row for _, row in group[group["engine"] == "reference"].iterrows()]
        fast = [row for _, row in group[group["engine"] == "reuse"].sort_values("compiled").iterrows()]
        yield from ((slow[0] if slow else None, row) for row in fast or [None])


def beside(frame: pd.DataFrame, key: list[str], column: str, *values: Any) -> Iterator[list[pd.Series]]:
    """Of every ``key``, a row for each of ``values`` of ``column``, where it has them all."""
    for _, group in frame.groupby(key):
        found = [group[group[column] == value] for value in values]
        if all(len(rows) for rows in found):
            yield [rows.iloc[0] for rows in found]


def either(pair: Pair) -> pd.Series:
    """Reuse's row, or the reference's where there is no other."""
    slow, fast = pair
    one = slow if fast is None else fast
    assert one is not None
    return one


def cells(rows: Sequence[pd.Series | None], column: str, digits: int) -> list[str]:
    """One column of each row; small numbers with more digits."""
    return [NONE if row is None or pd.isna(row[column]) else number(row[column], digits) for row in rows]


def number(value: float, digits: int) -> str:
    return f"{value:.{digits}f}" if value == 0 or abs(value) >= 10**-digits else f"{value:.2g}"


def fewer(tflop: float, than: pd.Series, model: str) -> str:
    """By how much FLOPs are fewer than those that ``than`` has for the model; a dash where it has none."""
    return f"{tflop / than[model] - 1:.1%}".replace("-", "−") if model in than.index else NONE


def times(pair: Pair) -> str:
    slow, fast = pair
    return NONE if slow is None or fast is None else ratio(slow, fast)


def compiled(row: pd.Series | None) -> str:
    return NONE if row is None else yes_or_no(row["compiled"])


def yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def steps(costs: pd.DataFrame, limits: pd.DataFrame) -> pd.DataFrame:
    """A row a model, method, surrogate and batch, with deterministic kernels."""
    costs = costs[costs["deterministic"]]
    least = limits.set_index(["model", "batch"])["limit_ms"]
    lat_full, lat_reuse = (
        costs[(costs["method"] == "lat") & (costs["engine"] == engine)].groupby("model")["tflop"].last()
        for engine in ("reference", "reuse")
    )
    rows = []
    for pair in by_engine(costs, ["model", "method", "surrogate", "batch"]):
        slow, fast = pair
        one = either(pair)
        reft = one["method"] == "lat_reft" and fast is not None
        row = {"model": one["model"], "method": one["method"], "surrogate": one["surrogate"], "batch": one["batch"]}
        row["compiled"] = compiled(fast)
        row["full passes, ms"], row["reuse, ms"] = cells(pair, "ms_median", 0)
        row["ratio"] = times(pair)
        bound = reft and one["surrogate"] == "none"
        row["limit ÷ time"] = f"{least[one['model'], one['batch']] / one['ms_median']:.0%}" if bound else NONE
        row["full, TFLOP"], row["reuse, TFLOP"] = cells(pair, "tflop", 1)
        if len(lat_full):
            compared = reft and slow is not None
            row["against LAT"] = fewer(one["tflop"], lat_full, one["model"]) if compared else NONE
            row["against LAT with reuse"] = fewer(one["tflop"], lat_reuse, one["model"]) if compared else NONE
        row["full, GiB"], row["reuse, GiB"] = cells(pair, "peak_gib", 1)
        rows.append(row)
    return pd.DataFrame(rows)


def attacks(costs: pd.DataFrame) -> pd.DataFrame:
    """A row a model and pass of an attack, or whole attack."""
    rows = []
    for pair in by_engine(costs, ["model", "attack"]):
        one = either(pair)
        slow, fast = cells(pair, "ms_median", 1)
        rows.append({"model": one["model"], "pass": one["attack"], "compiled": compiled(pair[1]),
                     "full passes, ms": slow, "reuse, ms": fast, "ratio": times(pair)})  # fmt: skip
    return pd.DataFrame(rows)


def price(costs: pd.DataFrame) -> pd.DataFrame:
    """What was run with deterministic kernels and with any."""
    key = ["model", "method", "engine", "surrogate", "batch", "compiled"]
    rows = []
    for strict, free in beside(costs, key, "deterministic", True, False):
        named = {**strict[key], "compiled": compiled(strict)}
        strict_ms, free_ms = cells((strict, free), "ms_median", 1)
        rows.append({**named, "deterministic, ms": strict_ms, "any, ms": free_ms, "ratio": ratio(strict, free, 2)})
    return pd.DataFrame(rows)


def uncaptured(costs: pd.DataFrame) -> pd.DataFrame:
    """Eager passes of reuse beside the full passes of the same run."""
    key = ["model", "method", "surrogate", "batch", "deterministic"]
    rows = []
    for slow, fast in beside(costs, key, "engine", "reference", "reuse_eager"):
        named = {**slow[key], "deterministic": yes_or_no(slow["deterministic"])}
        full_ms, eager_ms = cells((slow, fast), "ms_median", 0)
        rows.append({**named, "full passes, ms": full_ms, "reuse eager, ms": eager_ms, "ratio": ratio(slow, fast)})
    return pd.DataFrame(rows)


def one_device(*frames: pd.DataFrame) -> str:
    """The device of all rows; ``ValueError`` where there are several."""
    devices = sorted({device for frame in frames for device in frame["device"]})
    if len(devices) > 1:
        raise ValueError(f"rows of several devices cannot be compared: {devices}")
    return devices[0]


def page(costs: pd.DataFrame, limits: pd.DataFrame, attack_costs: pd.DataFrame, notes: str = "") -> str:
    """What the CSV files say, in Markdown; ``notes`` are what they do not say."""
    device = one_device(costs, limits, attack_costs)
    captured = "" if on_cpu(device) else (
        "Full passes are transformers' own, run eagerly. Of reuse, passes over windows are captured, and those over whole texts "
        "where they are so small that launches take most of their time; they are compiled where the column says so. So a ratio is "
        "the work saved and a part of what capturing and compiling save: fine-tuning and CAT, where there is nothing to "
        "reuse, show how much capturing alone can be. "
    )  # fmt: skip
    versions = ", ".join(sorted({*costs["torch"], *attack_costs["torch"]}))
    first, attack = costs[costs["method"] == "lat_reft"].iloc[0], attack_costs.iloc[0]
    precision = "float32" if on_cpu(device) else "bfloat16, weights too"
    layers = ", ".join("{} {} and {}".format(model, *layers_of(model)) for model in sorted(set(costs["model"])))
    parts = [
        "# What a step and an attack cost",
        f"Measured on {device}, torch {versions}. Random weights in the models' shapes, T = {first['tokens']}, "
        f"L = {first['window']}, K = 8 (CAT: the whole text and 10 steps), {precision}. Layers attacked and edited: {layers}; LAT "
        "attacks where LAT-ReFT does. The optimiser's update and its memory are left out. Where both engines were run, they were "
        "in turn. Times are medians; a ratio's "
        f"range is that of its slowest and fastest repeats. {captured}Made from the CSV files beside it by "
        "`PYTHONPATH=src python benchmarks/report.py`.",
        *([notes.strip()] if notes.strip() else []),
        "![Time of a step](step_cost.png)",
        "## One training step",
        "The limit is the least time that a LAT-ReFT step can take: the prefix pass's arithmetic at the measured rate of "
        "a large matrix product, and the weights above the attack layer read once a window pass at the measured "
        "bandwidth (`step_limit.csv`). It is a limit of steps without a surrogate only. `against LAT` compares the counted "
        "FLOPs of reuse with those of a LAT step in full passes, `against LAT with reuse` with those of one that reuses the "
        "prefix in its inner loop. CAT's adapters run beside their weights in all passes, as they do over bfloat16 weights only.",
        markdown_table(steps(costs, limits), 3),
        "## An attack's passes",
        f"`candidates`: the losses of {attack['candidates']} candidates behind {attack['content_tokens']} content "
        "tokens whose prefix is stored; `gradient`: one gradient of the attacked tokens; `gcg_N_examples_M_in_flight`: whole attacks, "
        "prefix passes included, of 10 rounds on N texts of up to as many tokens, M at a time.",
        markdown_table(attacks(attack_costs), 2),
    ]
    if len(prices := price(costs)):
        parts += [
            "## The price of determinism",
            "The same step with deterministic kernels and with any, in turn; their ratio is the price. Where "
            "its range is wide, eager passes wait for launches, and it says nothing.",
            markdown_table(prices, 4),
        ]
    if len(eager := uncaptured(costs)):
        parts += [
            "## Reuse without capturing",
            "What reuse saves where it is run as full passes are, eagerly, kernel by kernel. Where a GPU waits for launches, "
            "a step with reuse has as many to wait for.",
            markdown_table(eager, 4),
        ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Read the CSV files of a folder, and notes.md if there is one; write ``step_cost.pdf``, ``step_cost.png`` and
    ``README.md`` beside them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("published/bench"))
    folder = parser.parse_args().folder
    missing = [str(folder / name) for name in FILES if not (folder / name).is_file()]
    if missing:
        parser.error(
            f"--folder is {folder}, which lacks {', '.join(missing)}; the two cost benchmarks write them with --out"
        )
    costs, limits, attack_costs = (pd.read_csv(folder / name) for name in FILES)
    save(draw(rows_of(costs, limits)), folder / "step_cost.pdf", folder / "step_cost.png")
    notes = folder / "notes.md"
    text = notes.read_text(encoding="utf-8") if notes.is_file() else ""
    write_text(folder / "README.md", page(costs, limits, attack_costs, text))


if __name__ == "__main__":
    main()
