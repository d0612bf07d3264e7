"""The search for each method's settings: every configuration tried, and which was chosen by the stated rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from latreft.tables.context import Context
from latreft.tables.layout import Column, attacks_of, machine, rate, wide
from latreft.tables.layout import caption as caption_of
from latreft.tables.render import Table

LOSS = 0.03
"""Clean accuracy that a configuration may lose against no defense and still be chosen."""
ACCURACY = "Accuracy is that on the attacked texts before the attack."
RULE = (
    "Chosen, for each method: the lowest ASR among the configurations whose accuracy on the tuning texts is at most "
    f"{LOSS} below that without defense (all of them where none is); of equal ones the more accurate, then the first"
)


def build(context: Context) -> Table:
    """The table; its CSV has a column ``chosen``."""
    (attack,) = attacks_of(context)
    best = chosen(context, attack)

    def lead(cell: Mapping[str, Any]) -> dict[str, str]:
        return {"Method": context.name("methods", cell["method"]), "Settings": settings_of(cell["arm"])}

    columns = [
        Column("Accuracy", attack, "accuracy_before", rate),
        Column(f"{context.name('attacks', attack)} ASR", attack, "asr", rate),
    ]
    display = wide(context, lead, columns)
    display["Chosen"] = ["yes" if place in best else "" for place in range(len(display))]
    frame = machine(context)
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=caption_of(context, f"{ACCURACY} {RULE}."),
        frame=frame.assign(chosen=context.pooled["place"].isin(best)),
        display=display,
        lead=2,
        widths=((0.12, 0.4), ()),
    )


def settings_of(arm: str) -> str:
    """What an arm's name says of its settings: ``attack layer 5, epsilon 20.0``."""
    parts = [part.rsplit("_", 1) for part in arm.split("__")[1:]]
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in parts) or "–"


def chosen(context: Context, attack: str) -> set[int]:
    """The places chosen, one a defense; one none of whose runs is there has none."""
    rows = context.pooled[context.pooled["source"] == attack]
    values = rows.pivot(index="place", columns="metric", values="value")[["accuracy_before", "asr"]].dropna()
    values["method"] = [context.places[place]["method"] for place in values.index]
    undefended = values[values["method"] == "none"]["accuracy_before"]
    floor = undefended.max() - LOSS if len(undefended) else float("-inf")
    return {best_of(group, floor) for method, group in values.groupby("method", sort=False) if method != "none"}


def best_of(group: pd.DataFrame, floor: float) -> int:
    """The place of a method's best configuration."""
    accurate = group[group["accuracy_before"] >= floor]
    candidates = accurate if len(accurate) else group
    ordered = candidates.sort_values(["asr", "accuracy_before"], ascending=[True, False], kind="stable")
    return int(ordered.index[0])
