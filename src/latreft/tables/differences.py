"""Paired differences: how much less often an attack succeeds on LAT-ReFT than on each other arm, on the same examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from latreft.paired import PairedDifference, paired_difference
from latreft.per_example import Run, outcomes_of, run_at, run_of
from latreft.tables.context import Context
from latreft.tables.layout import ASR_WORDS, attacks_of, p_texts, partial_words
from latreft.tables.render import MISSING, NONE, Table

REFERENCE = "lat_reft"
COLUMNS = [
    "scale", "dataset", "model", "method", "arm", "reference", "attack", "metric", "difference", "ci_low", "ci_high",
    "n", "seeds", "seeds_wanted", "value", "value_reference", "mcnemar_p", "missing",
]  # fmt: skip
WORDS = (
    "Differences are ASR of the row's arm minus ASR of LAT-ReFT; above 0, attacks succeed less often on LAT-ReFT. An "
    "example's outcomes are averaged over seeds, then examples are drawn with replacement."
)
NOTES = (
    "The interval speaks of other examples, not of other seeds or trainings. One without width says that no example came out "
    "otherwise, and not that none would.",
    "p is McNemar's, exact and two-sided, one for each seed, and not corrected for the number of comparisons.",
)


def build(context: Context) -> Table:
    """The table: CSV one row an arm and attack; else a row an arm, with two columns an attack.

    Raises ``ValueError`` where a cell has no LAT-ReFT arm beside it, or outcomes are not those of their record.
    """
    outcomes = successes(context)
    rows, shown = [], []
    for cell in compared(context):
        row = {
            "Data set": context.name("datasets", cell["dataset"]),
            "Model": context.name("models", cell["model"]),
            "Arm": context.name("methods", cell["method"]) if cell["label"] == cell["method"] else str(cell["label"]),
        }
        for attack in attacks_of(context):
            title = context.name("attacks", attack)
            found = compare(context, cell, attack, outcomes) if attack in cell["attacks"] else None
            row |= {f"{title}, difference": difference_text(found), f"{title}, p": p_words(found)}
            rows += [found] if found else []
        shown.append(row)
    frame = pd.DataFrame(rows, columns=COLUMNS).astype({"n": "Int64"})
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=_caption(context, frame),
        frame=frame,
        display=pd.DataFrame(shown),
        lead=3,
        notes=NOTES,
    )


def successes(context: Context) -> dict[Run, pd.DataFrame]:
    """The outcomes (columns id, seed, outcome) of every attack whose record and outcomes are there."""
    records = {run_of(record): record for record in context.records}
    paths = {run_at(path): path for path in context.outcomes if path.is_file()}
    return {run: outcomes_of(records[run], path, "asr") for run, path in paths.items() if run in records}


def compared(context: Context) -> list[dict[str, Any]]:
    """The cells beside LAT-ReFT, each arm once; ``ValueError`` where there is no LAT-ReFT to compare with."""
    having = {(cell["dataset"], cell["model"]) for cell in context.places if cell["arm"] == REFERENCE}
    others = [cell for cell in context.places if cell["arm"] != REFERENCE]
    for cell in others:
        if (cell["dataset"], cell["model"]) not in having:
            raise ValueError(
                f"{context.target}: {cell['arm']} ({cell['dataset']}, {cell['model']}) has no arm {REFERENCE} to be "
                "compared with; add it to its group in config/experiments.yaml"
            )
    return others


def compare(
    context: Context, cell: Mapping[str, Any], attack: str, outcomes: Mapping[Run, pd.DataFrame]
) -> dict[str, Any]:
    """One row of the CSV; without a seed of both arms it is marked missing."""
    place = (str(cell["dataset"]), str(cell["model"]))
    seeds = sorted({int(c["seed"]) for c in context.cells if (c["dataset"], c["model"]) == place})
    own, reference = (_of_arm(outcomes, (*place, arm), attack, seeds) for arm in (str(cell["arm"]), REFERENCE))
    row = {key: cell[key] for key in ("dataset", "model", "method", "arm")} | {"reference": REFERENCE}
    row |= {"scale": context.scale, "attack": attack, "metric": "asr", "seeds_wanted": len(seeds)}
    if not set(own["seed"]) & set(reference["seed"]):
        return row | {"seeds": 0, "mcnemar_p": "", "missing": True}
    found = paired_difference(own, reference)
    rates = [float(arm.loc[arm["seed"].isin(found.seeds), "outcome"].mean()) for arm in (own, reference)]
    return row | _numbers(found) | {"value": rates[0], "value_reference": rates[1], "missing": False}


def _of_arm(
    outcomes: Mapping[Run, pd.DataFrame], arm: tuple[str, str, str], attack: str, seeds: Sequence[int]
) -> pd.DataFrame:
    """The outcomes of an arm under an attack, all of its seeds."""
    runs = [Run(*arm, seed, "attack", attack) for seed in seeds]
    found = [outcomes[run] for run in runs if run in outcomes]
    return pd.concat(found) if found else pd.DataFrame(columns=["id", "seed", "outcome"])


def _numbers(found: PairedDifference) -> dict[str, Any]:
    return {
        "difference": found.estimate, "ci_low": found.low, "ci_high": found.high, "n": found.n,
        "seeds": len(found.seeds), "mcnemar_p": ";".join(repr(found.p[seed]) for seed in found.seeds),
    }  # fmt: skip


def difference_text(row: Mapping[str, Any] | None) -> str:
    """``+0.250 [0.14, 0.36]``; ``missing`` without outcomes, ``–`` where the attack is not wanted."""
    if row is None:
        return NONE
    if row["missing"]:
        return MISSING
    return f"{row['difference']:+.3f} [{row['ci_low']:.2f}, {row['ci_high']:.2f}]{partial_words(row)}"


def p_words(row: Mapping[str, Any] | None) -> str:
    """McNemar's p of each seed, with two digits."""
    if row is None or row["missing"]:
        return NONE
    return p_texts(float(p) for p in row["mcnemar_p"].split(";"))


def _caption(context: Context, frame: pd.DataFrame) -> str:
    counts = sorted({int(n) for n in frame["n"].dropna()})
    n = " or ".join(f"{count:,}" for count in counts)
    seeds = int(frame["seeds_wanted"].max()) if len(frame) else 1
    parts = [
        context.scale_words,
        f"n = {n} examples{f', each with {seeds} seeds' if seeds > 1 else ''}" if n else "no runs yet",
        "95% bootstrap intervals in brackets",
        *context.code_words,
    ]
    return f"{context.title}. {'; '.join(parts)}. {ASR_WORDS} {WORDS}"
