"""A claim as ``config/claims.yaml`` says it: what is measured, and what of that counts as reproduced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from latreft.claims.arithmetic import PRUNABLE, QUESTIONS
from latreft.claims.patterns import PATTERNS
from latreft.per_example import SHARES
from latreft.settings import Settings, SettingsError, validate

ARITHMETIC, THEORY = "arithmetic", "theory"
EVERYWHERE = (ARITHMETIC, THEORY)
"""What claims are judged by at every scale."""
ARMS_OF = {"rate": (1, 1), "difference": (2, 2), "over_highest": (2, None), "over_lowest": (2, None)}
"""The least and the largest number of arms that a kind of quantity is of; any number for the others."""


class ArmName(Settings):
    """Which cells of a target of ``experiments.yaml`` a name in a claim stands for, all seeds together."""

    target: str
    panel: str = "main"
    dataset: str
    label: str
    """What the target shows the arm as; ``all`` stands for every label of the panel."""
    model: str = "main"
    """A model, ``main`` (the scale's main model), or ``all`` (every model that the target shows)."""


class Rates(Settings):
    """A value made of the rates of arms: one rate, a difference, or how far rates lie apart.

    ``difference``: first minus second. ``over_highest``, ``over_lowest``: first minus the highest, or the lowest, of the
    others. ``range``: highest minus lowest. Arms of one data set and model are compared; of the values of several
    models ``across_models`` says which one is judged.
    """

    kind: Literal["rate", "difference", "over_highest", "over_lowest", "range", "highest", "lowest"]
    arms: Annotated[list[str], Field(min_length=1)]
    of: str
    """``accuracy``, or an attack of the scale."""
    metric: str = ""
    """A metric of that record; ``accuracy`` or ``asr`` unless it is given."""
    across_models: Literal["smallest", "largest"] | None = None
    """Needed of a comparison; without it the ``highest`` and ``range`` take the largest, the ``lowest`` the smallest."""

    @property
    def counted(self) -> str:
        """The metric that is read."""
        return self.metric or ("accuracy" if self.of == "accuracy" else "asr")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        least, most = ARMS_OF.get(self.kind, (1, None))
        if len(self.arms) < least or (most is not None and len(self.arms) > most):
            wanted = f"{least}" if most == least else f"{least} or more"
            raise ValueError(f"key 'arms' has value {self.arms}: {self.kind} is of {wanted}")
        if self.kind != "rate" and self.counted not in SHARES:
            raise ValueError(f"key 'metric' has value {self.metric!r}: arms are compared by {', '.join(SHARES)}")
        return self


class Arithmetic(Settings):
    """A count from the published shapes of the paper scale's models and the settings of that scale."""

    kind: Literal["arithmetic"]
    what: str
    ledger: Literal["paper", "uniform"] = "paper"
    model: str | None = None
    """One model; without it all models of the paper scale, joined by ``across_models``."""
    across_models: Literal["mean", "smallest", "largest"] = "mean"
    pruning_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Instead of the paper scale's."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_what(self.what, QUESTIONS)
        if self.pruning_ratio is not None and self.what not in PRUNABLE:
            raise ValueError(f"key 'pruning_ratio' has value {self.pruning_ratio}: {self.what} does not depend on it")
        return self


class Scores(Settings):
    """What neuron scores keep in which layers, by scores records."""

    kind: Literal["scores"]
    what: str
    datasets: Annotated[list[str], Field(min_length=1)]
    models: Literal["main", "all"] = "main"
    across_models: Literal["smallest", "largest"] = "smallest"

    @model_validator(mode="after")
    def _known(self) -> Self:
        _check_what(self.what, PATTERNS)
        return self


class Theory(Settings):
    """A metric of the scale's theory record."""

    kind: Literal["theory"]
    metric: str


def _check_what(what: str, known: Mapping[str, Any]) -> None:
    if what not in known:
        raise ValueError(f"key 'what' has value {what!r}; known are {', '.join(sorted(known))}")


Quantity = Annotated[Rates | Arithmetic | Scores | Theory, Field(discriminator="kind")]
WITHOUT_INTERVAL = (Arithmetic, Scores)


class Condition(Settings):
    """What a value has to be. ``clearly`` asks the whole 95% interval, the others the estimate; all that is given holds."""

    above: float | None = None
    below: float | None = None
    clearly_above: float | None = None
    clearly_below: float | None = None
    near: float | None = None
    """At most ``within`` away from here."""
    within: Annotated[float, Field(ge=0)] | None = None

    @property
    def asks_interval(self) -> bool:
        """Whether the value needs an interval."""
        return self.clearly_above is not None or self.clearly_below is not None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.near is None) != (self.within is None):
            raise ValueError("key 'near' and key 'within' belong together")
        if not self.model_dump(exclude_none=True):
            raise ValueError(f"key '(top level)' is empty; a condition is one of {', '.join(type(self).model_fields)}")
        return self


Conditions = Annotated[dict[str, Condition], Field(min_length=1)]
"""Quantity → what it has to be; all of them have to hold."""


class Claim(Settings):
    """One claim of the paper, and its test."""

    statement: str
    where: str
    paper: float | str
    """The paper's value; words where it is a direction or a formula."""
    unit: str
    scales: list[str] = []
    """Where it is judged: scales of ``judged_at``, or ``arithmetic`` or ``theory``, which is everywhere."""
    not_testable: str = ""
    """Why it can be judged nowhere."""
    needs: str = ""
    """What scales that are not in ``scales`` lack."""
    tolerance: str = ""
    """Why the conditions are what they are, where the rules at the top of the file do not say it."""
    quantities: dict[str, Quantity] = {}
    """What is measured; the first is the value that is shown."""
    reproduced: dict[str, Condition] = {}
    partly: list[Conditions] = []
    """Else it is partly reproduced if one of these holds."""

    @model_validator(mode="after")
    def _testable_or_not(self) -> Self:
        test = (self.scales, self.quantities, self.reproduced, self.partly)
        if self.not_testable and any(test):
            raise ValueError("key 'not_testable' excludes scales, quantities, reproduced and partly")
        if not self.not_testable and not all(test):
            raise ValueError(
                "key 'scales', 'quantities', 'reproduced' or 'partly' is missing; a claim without test says 'not_testable'"
            )
        return self

    @model_validator(mode="after")
    def _conditions_fit(self) -> Self:
        for key, conditions in (("reproduced", self.reproduced), *(("partly", some) for some in self.partly)):
            for name, condition in conditions.items():
                if name not in self.quantities:
                    raise ValueError(f"key '{key}' names {name!r}; quantities are {', '.join(self.quantities)}")
                if condition.asks_interval and isinstance(self.quantities[name], WITHOUT_INTERVAL):
                    raise ValueError(f"key '{key}' asks for an interval of {name!r}, which a count does not have")
        return self

    def rates(self) -> Iterator[Rates]:
        """Its quantities that are made of rates."""
        yield from (quantity for quantity in self.quantities.values() if isinstance(quantity, Rates))


class Ledger(Settings):
    """``config/claims.yaml``."""

    judged_at: Annotated[list[str], Field(min_length=1)]
    """Scales whose numbers say something about the paper's claims."""
    not_judged_at: dict[str, str] = {}
    """Other scales, and why theirs do not."""
    arms: dict[str, ArmName] = {}
    claims: dict[str, Claim]

    def unsaid(self, scale: str) -> str:
        """Why numbers of ``scale`` say nothing about the claims; empty where they do."""
        judged = "" if scale in self.judged_at else f"claims are judged at {' and '.join(self.judged_at)} scale"
        return self.not_judged_at.get(scale, judged)

    def judged(self, scale: str) -> dict[str, Claim]:
        """The claims that are judged at ``scale``."""
        return {key: claim for key, claim in self.claims.items() if {scale, *EVERYWHERE} & set(claim.scales)}


def ledger(values: Mapping[str, Any], where: str) -> Ledger:
    """The ledger of a file's content. Raises ``SettingsError`` naming file, claim and value."""
    parts: dict[str, type[Settings]] = {"arms": ArmName, "claims": Claim}
    checked: dict[str, Any] = dict(values)
    for part, model in parts.items():
        entries = values.get(part)
        if isinstance(entries, Mapping):
            checked[part] = {key: _entry(model, entry, f"{where}: {part}.{key}") for key, entry in entries.items()}
    found = validate(Ledger, checked, where)
    _check_names(found, where)
    return found


def _entry(model: type[Settings], entry: Any, where: str) -> Settings:
    if not isinstance(entry, Mapping):
        raise SettingsError(f"{where}: expected keys and values, found {entry!r}")
    return validate(model, entry, where)


def _check_names(found: Ledger, where: str) -> None:
    """Every scale and arm that a claim names must be declared, and what is judged of several models be said."""
    both = sorted(set(found.judged_at) & set(found.not_judged_at))
    if both:
        raise SettingsError(f"{where}: {both[0]!r} is both in judged_at and in not_judged_at")
    scales = {*found.judged_at, *EVERYWHERE}
    for key, claim in found.claims.items():
        place = f"{where}: claims.{key}"
        for scale in claim.scales:
            if scale not in scales:
                raise SettingsError(f"{place}: unknown scale {scale!r}; known are {', '.join(sorted(scales))}")
        for rates in claim.rates():
            for arm in rates.arms:
                if arm not in found.arms:
                    raise SettingsError(f"{place}: unknown arm {arm!r}; arms are {', '.join(sorted(found.arms))}")
            several = [arm for arm in rates.arms if found.arms[arm].model == "all"]
            if several and rates.kind in ARMS_OF and rates.across_models is None:
                raise SettingsError(
                    f"{place}: key 'across_models' is missing; {several[0]} is of several models, so a {rates.kind} "
                    "needs smallest or largest"
                )
