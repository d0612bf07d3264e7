"""What a claim measures, made into values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatchmethod
from typing import Any

from latreft.claims.arithmetic import ACROSS, COUNTS, QUESTIONS, paper_model
from latreft.claims.comparison import compare
from latreft.claims.patterns import PATTERNS
from latreft.claims.runs import Cell, NotTestable, Runs
from latreft.claims.settings import Arithmetic, Quantity, Rates, Scores, Theory
from latreft.records import RunRecord
from latreft.tables.names import ATTACKS, LEDGERS


@dataclass(frozen=True)
class Value:
    """One measured value: ``said`` in words, with its interval where it has one, and the records behind it."""

    said: str
    estimate: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    seeds: int | None = None
    p: tuple[float, ...] = ()
    records: tuple[RunRecord, ...] = ()


@dataclass(frozen=True)
class Measured:
    """All that is at hand at one scale.

    ``arms``: name → ``cells`` (plain values), or why there are none (``absent``). ``costs``: model of the paper scale →
    its title and its methods' settings. ``main_model`` and ``models`` are the scale's.
    """

    runs: Runs
    arms: Mapping[str, Mapping[str, Any]]
    costs: Mapping[str, Mapping[str, Any]]
    main_model: str
    models: Sequence[str]

    @singledispatchmethod
    def value(self, quantity: Quantity) -> Value:
        """The value of a quantity. Raises ``NotTestable`` where its runs are not there."""
        raise TypeError(f"no quantity: {quantity!r}")

    @value.register
    def _(self, quantity: Rates) -> Value:
        if quantity.kind == "rate":
            return self._rate(quantity)
        models, metric, of = self._compared(quantity), quantity.counted, quantity.of
        outcomes = [[self.runs.per_example(cells, of, metric) for cells in arms] for arms in models]
        found = compare(quantity.kind, outcomes, quantity.across_models)
        records = self.runs.of([cell for arms in models for cells in arms for cell in cells], of)
        numbers = (found.estimate, found.low, found.high, found.n, found.seeds, found.p)
        return Value(_rates_said(quantity), *numbers, tuple(records))

    def _compared(self, quantity: Rates) -> list[list[list[Cell]]]:
        """The arms that are compared, by data set and model, each with the cells of its seeds."""
        models: dict[tuple[str, str], list[list[Cell]]] = {}
        for name in quantity.arms:
            for place, arms in _by_model(self._cells(name)).items():
                models.setdefault(place, []).extend(arms)
        if quantity.kind in COMPARED:
            for place, arms in models.items():
                _check_compared("/".join(place), arms, len(quantity.arms))
        return _with_common_seeds(list(models.values()))

    def _rate(self, quantity: Rates) -> Value:
        (name,) = quantity.arms
        cells = self._cells(name)
        if len({cell["arm"] for cell in cells}) > 1 or len(_by_model(cells)) > 1:
            raise ValueError(f"arm {name} stands for several arms; a rate is of one")
        row = self.runs.pooled(cells, quantity.of, quantity.counted)
        numbers = (float(row["value"]), float(row["ci_low"]), float(row["ci_high"]), int(row["n"]), int(row["seeds"]))
        return Value(_rates_said(quantity), *numbers, records=tuple(self.runs.of(cells, quantity.of)))

    def _cells(self, name: str) -> list[Cell]:
        arm = self.arms[name]
        if arm["absent"]:
            raise NotTestable(arm["absent"])
        return list(arm["cells"])

    @value.register
    def _(self, quantity: Arithmetic) -> Value:
        if not self.costs:
            raise NotTestable("the paper scale's settings cannot be read")
        models = [quantity.model] if quantity.model else list(self.costs)
        for model in models:
            if model not in self.costs:
                raise ValueError(f"the paper scale has no model {model!r}; its models are {', '.join(self.costs)}")
        changes = {} if quantity.pruning_ratio is None else {"pruning_ratio": quantity.pruning_ratio}
        values = [
            QUESTIONS[quantity.what](paper_model(cost["title"], cost["methods"]), quantity.ledger, **changes)
            for cost in (self.costs[model] for model in models)
        ]
        return Value(
            _arithmetic_said(quantity, [self.costs[model]["title"] for model in models]),
            ACROSS[quantity.across_models](values),
        )

    @value.register
    def _(self, quantity: Scores) -> Value:
        models = self.models if quantity.models == "all" else [self.main_model]
        places = [(dataset, model) for dataset in quantity.datasets for model in models]
        missing = ["/".join(place) for place in places if place not in self.runs.scores]
        if missing:
            raise NotTestable(f"no neuron scores of {missing[0]}")
        records = tuple(self.runs.scores[place] for place in places)
        value = ACROSS[quantity.across_models]([PATTERNS[quantity.what](record) for record in records])
        return Value(f"{_spaced(quantity.what)}, {', '.join(map('/'.join, places))}", value, records=records)

    @value.register
    def _(self, quantity: Theory) -> Value:
        record = self.runs.theory
        if record is None:
            raise NotTestable("no theory record")
        metric = record.metrics.get(quantity.metric)
        if metric is None:
            known = ", ".join(sorted(record.metrics))
            raise ValueError(f"the theory record has no metric {quantity.metric!r}; it has {known}")
        return Value(quantity.metric, metric.value, metric.ci_low, metric.ci_high, metric.n, records=(record,))


def _check_compared(place: str, arms: Sequence[Sequence[Cell]], wanted: int) -> None:
    """One arm a name, and no arm compared with itself."""
    if len(arms) != wanted:
        raise NotTestable(f"{place} has {len(arms)} of the {wanted} arms that are compared")
    names = [cells[0]["arm"] for cells in arms]
    if names[0] in names[1:]:
        raise NotTestable(f"{place}: {names[0]} would be compared with itself")


def _with_common_seeds(models: Sequence[Sequence[Sequence[Cell]]]) -> list[list[list[Cell]]]:
    """The arms of each model with those of their seeds that all of them have."""
    seeds = set.intersection(*({cell["seed"] for cell in cells} for arms in models for cells in arms))
    if not seeds:
        raise NotTestable("the arms that are compared share no seed")
    return [[[cell for cell in cells if cell["seed"] in seeds] for cells in arms] for arms in models]


def _by_model(cells: Sequence[Cell]) -> dict[tuple[str, str], list[list[Cell]]]:
    """Data set and model → its arms in order, each with the cells of its seeds."""
    found: dict[tuple[str, str], dict[str, list[Cell]]] = {}
    for cell in cells:
        found.setdefault((cell["dataset"], cell["model"]), {}).setdefault(cell["label"], []).append(cell)
    return {place: list(arms.values()) for place, arms in found.items()}


COMPARED = {"difference": "", "over_highest": "highest of ", "over_lowest": "lowest of "}


def _arms_said(kind: str, arms: Sequence[str]) -> str:
    """``a − highest of b, c``; ``range of a, b``; the one arm of a rate."""
    if kind in COMPARED:
        return f"{arms[0]} − {COMPARED[kind]}{', '.join(arms[1:])}"
    return arms[0] if kind == "rate" else f"{kind} of {', '.join(arms)}"


def _rates_said(quantity: Rates) -> str:
    rate = "accuracy" if quantity.of == "accuracy" else f"{ATTACKS.get(quantity.of, quantity.of)} ASR"
    metric = f" ({quantity.metric})" if quantity.metric else ""
    over = f", {quantity.across_models} over models" if quantity.across_models else ""
    return f"{rate}{metric}, {_arms_said(quantity.kind, quantity.arms)}{over}"


def _arithmetic_said(quantity: Arithmetic, models: list[str]) -> str:
    ledger = "" if quantity.what in COUNTS else f", {LEDGERS[f'cost_{quantity.ledger}_flops_per_example']}"
    pruned = "" if quantity.pruning_ratio is None else f", {quantity.pruning_ratio:.0%} pruned"
    over = "" if quantity.model else f"{quantity.across_models} of "
    return f"{_spaced(quantity.what)}{ledger}{pruned}, {over}{', '.join(models)}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")
