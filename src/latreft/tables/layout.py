"""From pooled results to a table: which columns, and how a number is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from latreft.tables import names, paper
from latreft.tables.collect import sizes
from latreft.tables.context import Context
from latreft.tables.render import MISSING, NONE, Table

MACHINE = [
    "scale", "panel", "label", "dataset", "model", "method", "arm", "source", "metric", "value", "n", "ci_low",
    "ci_high", "unit", "seeds", "seeds_wanted", "seed_values", "missing",
]  # fmt: skip
TERA = 1e12
NARROW = 0.02
"""Width of an interval up to which its ends are written with three decimals, not two."""
ASR_WORDS = "ASR is the share of all attacked examples that were right before the attack and wrong after it."
STRICT = {"asr_of_correct": "of correct", "asr_round_trip": "re-tokenised"}
STRICT_WORDS = (
    "The same attacks counted otherwise: of the examples right before the attack, and keeping only successes that "
    "survive decoding to text and tokenising again"
)
Point = Mapping[str, Any]
PaperValue = Callable[[Mapping[str, Any], str], float]


@dataclass(frozen=True)
class Column:
    """One column of numbers. ``paper`` names the column of the paper's CSV, whose numbers times ``factor`` are ours."""

    title: str
    source: str
    metric: str
    form: Callable[[float], str]
    paper: str = ""
    factor: float = 1.0


def significant(value: float, digits: int = 4) -> str:
    """``value`` with ``digits`` significant digits, without an exponent unless it is very small."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def tera(value: float) -> str:
    """FLOP as TFLOP."""
    return significant(value / TERA)


def rate(value: float) -> str:
    """A rate without its interval: two decimals, three where the third says something."""
    text = f"{value:.3f}"
    return text.removesuffix("0")


def reported(value: float, form: Callable[[float], str]) -> str:
    """A number of the paper with the digits that it prints; ``–`` where it reports none."""
    if pd.isna(value):
        return NONE
    return rate(value) if form is rate else f"{value:.10g}"


def text_of(point: Point | None, form: Callable[[float], str]) -> str:
    """A pooled value as text: ``0.945 [0.93, 0.96]``, ``missing`` without a record, ``–`` where there is no value."""
    if point is None:
        return NONE
    if pd.isna(point["value"]):
        return MISSING if point["missing"] else NONE
    text = form(point["value"])
    if point["unit"] == "rate":
        digits = 2 if point["ci_high"] - point["ci_low"] > NARROW else 3
        text = f"{point['value']:.3f} [{point['ci_low']:.{digits}f}, {point['ci_high']:.{digits}f}]"
    return text + partial_words(point)


def partial_words(point: Point) -> str:
    """`` (1 of 3 seeds)`` where some of the seeds wanted are not there; else nothing."""
    partial = point["seeds"] < point["seeds_wanted"]
    return f" ({point['seeds']} of {point['seeds_wanted']} seeds)" if partial else ""


def p_text(p: float) -> str:
    """A p with two digits."""
    return "<0.001" if p < 0.001 else f"{p:.2g}"


def p_texts(p: Iterable[float]) -> str:
    """The p of each seed; ``–`` where there is none."""
    return "; ".join(map(p_text, p)) or NONE


def attacks_of(context: Context) -> list[str]:
    """The attacks that the target shows, in order."""
    return list(dict.fromkeys(attack for cell in context.places for attack in cell["attacks"]))


def rate_columns(context: Context, paper_names: Mapping[str, str]) -> list[Column]:
    """Clean accuracy and each attack's ASR; ``paper_names`` maps source to column of the paper's CSV."""
    accuracy = Column("Accuracy", "accuracy", "accuracy", rate, paper_names.get("accuracy", ""))
    return [accuracy] + [
        Column(f"{context.name('attacks', attack)} ASR", attack, "asr", rate, paper_names.get(attack, ""))
        for attack in attacks_of(context)
    ]


def cost_columns(paper_name: str = "") -> list[Column]:
    """Trainable share, and TFLOP per training example of 512 tokens by each ledger."""
    share = "trainable_params_percent" if paper_name else ""
    reported = {"cost_paper_flops_per_example": paper_name}
    return [Column("Trainable %", "cost", "cost_trainable_percent", significant, share)] + [
        Column(f"TFLOP, {title}", "cost", metric, tera, reported.get(metric, ""), TERA)
        for metric, title in names.LEDGERS.items()
    ]


def cost_note(context: Context) -> str:
    """What the TFLOP of :func:`cost_columns` are; an engine that reuses prefixes runs fewer operators."""
    runtimes = (record.provenance.get("runtime", {}) for record in context.records if record.kind == "train")
    engines = sorted({runtime["engine"] for runtime in runtimes if "engine" in runtime})
    ran = f", by the engine {' and '.join(engines)}" if engines else ""
    return (
        "TFLOP are per training example of 512 tokens, by three ledgers: the paper's formulas (App. E), one rule for every "
        f"method alike, and the operators counted while it ran on the data set's own texts{ran}."
    )


def points_of(context: Context) -> dict[tuple[int, str, str], Point]:
    """Pooled results by place, source and metric."""
    return {(row["place"], row["source"], row["metric"]): row for row in context.pooled.to_dict("records")}


def wide(
    context: Context,
    lead: Callable[[Mapping[str, Any]], dict[str, str]],
    columns: Sequence[Column],
    paper_value: PaperValue | None = None,
) -> pd.DataFrame:
    """Display frame: a row a place, ``lead`` saying what it is; the paper's columns at the paper scale only."""
    points = points_of(context)
    beside = [column for column in columns if column.paper] if paper_value and paper.shown(context) else []
    rows = []
    for place, cell in enumerate(context.places):
        row = lead(cell)
        row |= {c.title: text_of(points.get((place, c.source, c.metric)), c.form) for c in columns}
        for column in beside:
            assert paper_value is not None
            row[f"paper: {column.title}"] = reported(paper_value(cell, column.paper), column.form)
        rows.append(row)
    return pd.DataFrame(rows)


def machine(context: Context, columns: Sequence[Column] = (), paper_value: PaperValue | None = None) -> pd.DataFrame:
    """CSV frame: every pooled metric of every place; at the paper scale with a column ``paper_value``, in our unit."""
    frame = context.pooled.assign(scale=context.scale)
    if paper_value is None or not paper.shown(context):
        return frame[MACHINE]
    named = {(column.source, column.metric): column for column in columns if column.paper}
    places = context.places
    values = []
    for place, source, metric in zip(frame["place"], frame["source"], frame["metric"], strict=True):
        column = named.get((source, metric))
        value = paper_value(places[place], column.paper) if column else float("nan")
        values.append(round(value * column.factor, 12) if column else value)
    return frame.assign(paper_value=values)[[*MACHINE, "paper_value"]]


def strict(context: Context, lead: Callable[[Mapping[str, Any]], dict[str, str]]) -> tuple[str, pd.DataFrame]:
    """The supplement of an attack table: each attack's two stricter rates."""
    columns = [
        Column(f"{context.name('attacks', attack)}, {words}", attack, metric, rate)
        for attack in attacks_of(context)
        for metric, words in STRICT.items()
    ]
    titles = {attack: context.name("attacks", attack) for attack in attacks_of(context)}
    counted = sizes(context.pooled, titles, tuple(STRICT))
    return f"{STRICT_WORDS}. {context.scale_words}; {counted}.", wide(context, lead, columns)


def caption(context: Context, *further: str) -> str:
    """Title, scale, n, seeds, and what the intervals are."""
    intervals = "95% Wilson intervals in brackets"
    seeds = f"means over {context.seeds} seeds, intervals with the n of one seed" if context.seeds > 1 else "one seed"
    parts = [context.scale_words, context.n_words, intervals, seeds, *context.code_words]
    return " ".join([f"{context.title}. {'; '.join(parts)}.", *further])


def attack_table(
    context: Context,
    lead: Callable[[Mapping[str, Any]], dict[str, str]],
    columns: Sequence[Column],
    paper_value: PaperValue | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """A table of defenses under attack, with its supplement."""
    places = context.places
    beside = [paper.NOTE] if paper_value and paper.shown(context) else []
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=caption(context, ASR_WORDS),
        frame=machine(context, columns, paper_value),
        display=wide(context, lead, columns, paper_value),
        lead=len(lead(places[0])) if places else 1,
        notes=[*notes, *beside],
        supplement=strict(context, lead),
    )
