"""From values to a verdict: reproduced, partly, not reproduced, or not testable here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from latreft.claims.quantities import Measured, Value
from latreft.claims.runs import NotTestable
from latreft.claims.settings import EVERYWHERE, Claim, Condition, Ledger

REPRODUCED, PARTLY, NOT_REPRODUCED = "reproduced", "partly", "not reproduced"
NOT_TESTABLE = "not testable here"
ROUNDING = 1e-9
"""Rates that are equal but for the order of a sum are equal."""
VERDICTS = (REPRODUCED, PARTLY, NOT_REPRODUCED, NOT_TESTABLE)


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, the reason for it, and the values it was judged by."""

    key: str
    claim: Claim
    verdict: str
    reason: str
    values: Mapping[str, Value]


def judge(ledger: Ledger, measured: Measured) -> list[Judged]:
    """Every claim of the ledger, in its order. An error names the claim."""
    found = []
    for key, claim in ledger.claims.items():
        try:
            found.append(judge_claim(key, claim, measured, elsewhere(claim, ledger, measured.runs.scale)))
        except ValueError as error:
            raise ValueError(f"claim {key}: {error}") from None
    return found


def elsewhere(claim: Claim, ledger: Ledger, scale: str) -> str:
    """Why a claim is not judged at ``scale``; empty where it is."""
    if claim.not_testable:
        return claim.not_testable
    if {scale, *EVERYWHERE} & set(claim.scales):
        return ""
    needs = f": it needs {claim.needs}" if claim.needs else ""
    return ledger.unsaid(scale) or f"judged at {' and '.join(claim.scales)} scale only{needs}"


def judge_claim(key: str, claim: Claim, measured: Measured, untested: str = "") -> Judged:
    """The verdict on one claim; ``untested`` says why there is none."""
    if untested:
        return Judged(key, claim, NOT_TESTABLE, untested, {})
    try:
        values = {name: measured.value(quantity) for name, quantity in claim.quantities.items()}
    except NotTestable as missing:
        return Judged(key, claim, NOT_TESTABLE, str(missing), {})
    verdict, reason = decide(claim, values)
    return Judged(key, claim, verdict, reason, values)


def decide(claim: Claim, values: Mapping[str, Value]) -> tuple[str, str]:
    """Verdict and reason from a claim's values."""
    reason = said(claim.reproduced, values)
    if holds(claim.reproduced, values):
        return REPRODUCED, reason
    for conditions in claim.partly:
        if holds(conditions, values):
            return PARTLY, f"{reason}; but {said(conditions, values)}"
    return NOT_REPRODUCED, reason


def holds(conditions: Mapping[str, Condition], values: Mapping[str, Value]) -> bool:
    """Whether all conditions hold."""
    return all(found for name, condition in conditions.items() for _, found in checks(condition, values[name]))


def said(conditions: Mapping[str, Condition], values: Mapping[str, Value]) -> str:
    """The conditions in words, each with whether it holds."""
    parts = [
        f"{name} {'' if found else 'not '}{words}"
        for name, condition in conditions.items()
        for words, found in checks(condition, values[name])
    ]
    return ", ".join(parts)


def checks(condition: Condition, value: Value) -> list[tuple[str, bool]]:
    """Each part of a condition in words, and whether the value meets it.

    A condition on the interval of a value that has none is a ``ValueError``.
    """
    if condition.asks_interval and (value.low is None or value.high is None):
        raise ValueError(f"{value.said} has no interval to be judged by")
    low, high = value.low or 0.0, value.high or 0.0
    tests: dict[str, Callable[[float], bool]] = {
        "above": lambda bound: value.estimate > bound + ROUNDING,
        "below": lambda bound: value.estimate < bound - ROUNDING,
        "clearly_above": lambda bound: low > bound + ROUNDING,
        "clearly_below": lambda bound: high < bound - ROUNDING,
    }
    given = condition.model_dump(exclude_none=True)
    found = [
        (f"{key.replace('_', ' ')} {given[key]:g}", test(given[key])) for key, test in tests.items() if key in given
    ]
    if condition.near is not None and condition.within is not None:
        near = abs(value.estimate - condition.near) <= condition.within + ROUNDING
        found.append((f"within {condition.within:g} of {condition.near:g}", near))
    return found
