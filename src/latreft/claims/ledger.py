"""The ledger of claims as a table: each claim, what was found, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from latreft.claims.quantities import Value
from latreft.claims.verdict import NOT_TESTABLE, VERDICTS, Judged
from latreft.tables.layout import p_texts, significant
from latreft.tables.render import NONE, Table

COLUMNS = [
    "scale", "id", "statement", "where", "paper", "unit", "quantity", "estimate", "ci_low", "ci_high", "n", "seeds", "p",
    "verdict", "reason", "compared", "runs", "records",
]  # fmt: skip
DIGITS = 16
WITHOUT_ARMS = "counts, theorems and patterns of pruning"
"""What claims that no arm was run for are about."""
NOTES = (
    "Of a claim with several values the first is shown. Rates have 95% Wilson intervals with the n of one seed; what "
    "compares arms has 95% intervals of a paired bootstrap over examples, an example's outcomes averaged over seeds; one without "
    "width says that no example came out otherwise in the two arms, and not that none would.",
    "Clearly above or below asks the whole interval, above and below the estimate. What had to hold was written down in "
    "config/claims.yaml before the runs.",
    "p is McNemar's, exact and two-sided, one for each seed, where the difference of two arms is shown, and below wherever "
    "there is one; it is not corrected for the number of claims.",
)
BEHIND = ["Claim", "Compared", "Runs", "Records"]
WIDTHS = ((0.11, 0.2, 0.06, 0.12, 0.04, 0.04, 0.05, 0.09, 0.2), (0.12, 0.44, 0.2, 0.16))


def build(judged: Sequence[Judged], scale: str, caption: str) -> Table:
    """The table of all claims; its supplement says what was compared, and from which runs."""
    frame = pd.DataFrame([_row(one, scale) for one in judged], columns=COLUMNS)
    behind = pd.DataFrame([_behind(one) for one in judged if one.values], columns=BEHIND)
    return Table(
        label=f"tab:{scale}:claims",
        caption=f"{caption}. {_counts(frame)}.",
        frame=frame.astype({"n": "Int64", "seeds": "Int64"}),
        display=pd.DataFrame([_shown(one) for one in judged]),
        lead=len(WIDTHS[0]),
        notes=NOTES,
        supplement=("What was compared for each verdict, and the records behind it", behind),
        widths=WIDTHS,
    )


def on_arms_and_others(claims: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of claims that were judged: by rates of arms, and by what no arm was run for (:data:`WITHOUT_ARMS`)."""
    judged = claims[claims["verdict"] != NOT_TESTABLE]
    on_arms = judged["seeds"].notna()  # nothing else has seeds
    return judged[on_arms], judged[~on_arms]


def _counts(claims: pd.DataFrame) -> str:
    """How often each verdict was given, and how many rest on no arm: those are the same at every scale, or nearly."""
    counts, (on_arms, others) = claims["verdict"].value_counts(), on_arms_and_others(claims)
    said = ", ".join(f"{verdict}: {counts.get(verdict, 0)}" for verdict in VERDICTS)
    return (
        f"{said}. Of the {len(on_arms) + len(others)} that were judged, {len(on_arms)} rest on rates of arms, the others "
        f"on {WITHOUT_ARMS}"
    )


def _first(one: Judged) -> tuple[str, Value | None]:
    return next(iter(one.values.items()), ("", None))


def _p(one: Judged) -> tuple[float, ...]:
    """McNemar's p of each seed, where the value that is shown is a difference of two arms."""
    _, value = _first(one)
    return value.p if value else ()


def _runs(one: Judged) -> list[str]:
    """The arms behind a verdict, each once."""
    records = [record for value in one.values.values() for record in value.records]
    return list(dict.fromkeys(f"{record.dataset}/{record.model.name}/{record.arm}" for record in records))


def _records(one: Judged) -> list[str]:
    """The first digits of the digests of the records behind a verdict, as in ``records.csv``."""
    records = [record for value in one.values.values() for record in value.records]
    return list(dict.fromkeys(record.digest()[:DIGITS] for record in records))


def _compared(one: Judged) -> str:
    """Every value in words, with its p where it has one."""
    return "; ".join(f"{name}: {value.said} = {_with_p(value)}" for name, value in one.values.items())


def _with_p(value: Value) -> str:
    return value_text(value) + (f", p {p_texts(value.p)}" if value.p else "")


def _row(one: Judged, scale: str) -> dict[str, Any]:
    name, value = _first(one)
    keys = ("estimate", "low", "high", "n", "seeds")
    numbers = {key: getattr(value, key) if value else None for key in keys}
    claim = one.claim
    return {
        "scale": scale, "id": one.key, "statement": claim.statement, "where": claim.where, "paper": claim.paper,
        "unit": claim.unit, "quantity": name, "ci_low": numbers.pop("low"), "ci_high": numbers.pop("high"),
        "verdict": one.verdict, "reason": one.reason, "compared": _compared(one), "runs": ";".join(_runs(one)),
        "records": ";".join(_records(one)), "p": ";".join(map(repr, _p(one))), **numbers,
    }  # fmt: skip


def value_text(value: Value | None) -> str:
    """``0.310 [0.250, 0.377]``; ``–`` where nothing was measured."""
    if value is None:
        return NONE
    if value.low is None or value.high is None:
        return significant(value.estimate)
    return f"{value.estimate:.3f} [{value.low:.3f}, {value.high:.3f}]"


def _shown(one: Judged) -> dict[str, str]:
    _, value = _first(one)
    return {
        "Claim": one.key,
        "Statement": f"{one.claim.statement} ({one.claim.where})",
        "Paper": one.claim.paper if isinstance(one.claim.paper, str) else f"{one.claim.paper:g}",
        "Estimate": value_text(value),
        "n": f"{value.n:,}" if value and value.n is not None else NONE,
        "Seeds": str(value.seeds) if value and value.seeds is not None else NONE,
        "p": p_texts(_p(one)),
        "Verdict": one.verdict,
        "Reason": one.reason,
    }


def _behind(one: Judged) -> dict[str, str]:
    return {
        "Claim": one.key,
        "Compared": _compared(one),
        "Runs": ", ".join(_runs(one)) or NONE,
        "Records": ", ".join(_records(one)) or NONE,
    }
