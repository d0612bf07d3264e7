"""The factual part of a published folder's README: what ran, on what, for how long, with what, and what is missing."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from latreft.experiments import Plan
from latreft.published import folder
from latreft.published.rates import Checked
from latreft.published.spent import by_part, seconds
from latreft.records import RunRecord
from latreft.tables.context import mixed_code
from latreft.tables.render import markdown_table

BEGIN = "<!-- facts: begin; written by tools/publish.py, what is edited up to the end marker is lost -->"
END = "<!-- facts: end -->"
RULES = {
    "finetune": "finetune",
    "scores": "score_neurons",
    "theory": "check_theory",
    "train": "train_defense",
    "accuracy": "evaluate_accuracy",
    "attack": "attack",
}
"""Kind of record → the rule that ran for the seconds in it."""


SAME_HASH = re.compile(r"^Of [0-9,]+ files of per-example outcomes, ([0-9][0-9,]*) have the SHA-256", re.MULTILINE)
REWRITTEN = "; one that is brought back from an earlier publication keeps its values and not its bytes"


@dataclass(frozen=True)
class Facts:
    """What the README says. ``missing`` are files that the targets want; ``unbuilt`` the targets left out for that."""

    plan: Plan
    records: Sequence[RunRecord]
    checked: Checked
    missing: Sequence[str] = ()
    unbuilt: Sequence[str] = ()

    def text(self) -> str:
        """The part between the markers, without them."""
        scale = self.plan.scale.name
        blocks = [
            *self._partial(),
            table(("", ""), self._overview()),
            "Seconds are wall clock of the jobs, by their records. Evaluations of clean classifiers are not in them.",
            table(("rule", "device", "runs", "seconds", "hours"), self._seconds(), lead=2),
            f"The same by part of the sweep; `{folder.SECONDS}` has them by arm. Arms of the search belong to no seed here. "
            "Card-minutes are the seconds by the number of jobs that could share a card: it took longer where it was not "
            "full, and the start of a job is not counted.",
            table(("part", "runs", "seconds", "card-minutes, at least"), self._parts(), lead=1),
            f"Of {self.checked.runs:,} files of per-example outcomes, {self.checked.same_hash:,} have the SHA-256 that "
            f"their record names{REWRITTEN if self.checked.same_hash < self.checked.runs else ''}. {self.checked.metrics:,} "
            "metrics were recomputed from them and agree with the records.",
            f"To rebuild tables and figures from this folder: `make redraw SCALE={scale}`. To recompute the rates: "
            f"`python tools/check_rates.py published/{scale}`. What lies here: [docs/evidence.md](../../docs/evidence.md).",
        ]
        return "\n\n".join(blocks)

    def _partial(self) -> list[str]:
        if not self.missing:
            return []
        listed = "\n".join(f"- `{path}`" for path in self.missing)
        unbuilt = ", ".join(f"`{name}`" for name in self.unbuilt) or "none"
        return [
            f"**Partial.** Of the files that the scale's targets want, {len(self.missing)} are missing. Targets not built: "
            f"{unbuilt}.\n\n<details><summary>Missing files, below <code>results/{self.plan.scale.name}</code>"
            f"</summary>\n\n{listed}\n\n</details>"
        ]

    def _overview(self) -> list[tuple[str, str]]:
        arms = {(r.dataset, r.model.name, r.arm) for r in self.records if r.kind == "train"}
        kinds = Counter(r.kind for r in self.records)
        seeds = sorted({r.seed for r in self.records if r.kind == "train"})
        listed = ", ".join(f"{kinds[kind]:,} {kind}" for kind in sorted(kinds))
        return [
            ("scale", f"{self.plan.scale.name} ({self.plan.scale.settings.title})"),
            ("records", f"{len(self.records):,}: {listed}"),
            ("arms", f"{len(arms):,}, in {kinds['train']:,} trainings with seeds {', '.join(map(str, seeds))}"),
            ("data sets", ", ".join(sorted({r.dataset for r in self.records}))),
            ("models", "; ".join(sorted({f"{r.model.name} at {r.model.revision}" for r in self.records}))),
            ("devices", counted(r.cost["device"] for r in self.records if "device" in r.cost)),
            *((f"version of {name}", versions) for name, versions in self._versions().items()),
            ("code", self._code()),
            *([] if self.missing else [("missing", "none of the files that the scale's targets want")]),
        ]

    def _versions(self) -> dict[str, str]:
        named = [r.provenance["versions"] for r in self.records if "versions" in r.provenance]
        names = sorted({name for versions in named for name in versions})
        return {name: counted(versions[name] for versions in named if name in versions) for name in names}

    def _code(self) -> str:
        """Whether runs of one kind were made by one version of the code."""
        mixed = [f"{run} ({number})" for run, number in mixed_code(self.records).items()]
        if mixed:
            return f"more than one version: {', '.join(mixed)}"
        return "one version for each script with its attack or method"

    def _seconds(self) -> list[tuple[str, ...]]:
        spent: dict[tuple[str, str], list[float]] = {}
        for record in self.records:
            if record.kind in RULES:
                place = (RULES[record.kind], str(record.cost.get("device", "unknown")))
                spent.setdefault(place, []).append(seconds(record.cost))
        order = list(RULES.values())
        rows = [
            (rule, device, f"{len(runs):,}", f"{sum(runs):,.0f}", f"{sum(runs) / 3600:.2f}")
            for (rule, device), runs in sorted(spent.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
        ]
        every = [value for runs in spent.values() for value in runs]
        return [*rows, ("all", "", f"{len(every):,}", f"{sum(every):,.0f}", f"{sum(every) / 3600:.2f}")]

    def _parts(self) -> list[tuple[str, ...]]:
        parts = by_part(self.plan, self.records)
        parts.loc["all"] = parts.sum()
        return [
            (str(part), f"{row.runs:,.0f}", f"{row.seconds:,.0f}", f"{row.card_seconds / 60:,.0f}")
            for part, row in parts.iterrows()
        ]


def with_count_of(page: str, checked: Checked) -> Checked:
    """``checked`` with the page's count of outcomes that have their record's SHA-256, where it can be one.

    That number is of the files that were published from: those that come back from here have other bytes.
    """
    found = SAME_HASH.search(page)
    count = int(found[1].replace(",", "")) if found else -1
    return replace(checked, same_hash=count) if 0 <= count <= checked.runs else checked


def counted(values: Iterable[str]) -> str:
    """The one value, or each with the number of runs that have it."""
    counts = Counter(values)
    if len(counts) == 1:
        return next(iter(counts))
    listed = [f"{value} ({count:,} run{'s' * (count > 1)})" for value, count in sorted(counts.items())]
    return ", ".join(listed) or "unknown"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], lead: int = 2) -> str:
    """A Markdown table; the first ``lead`` columns to the left."""
    return markdown_table(pd.DataFrame(list(rows), columns=list(head)), lead)


def page(before: str | None, scale: str, facts: str) -> str:
    """The README ``before`` with new ``facts`` between its markers; a first page where there is none.

    Raises ``ValueError`` where a page has lost one of the markers.
    """
    if before is None:
        before = f"# Published evidence: {scale}\n\n{BEGIN}\n{END}\n"
    if before.count(BEGIN) != 1 or before.count(END) != 1 or before.index(BEGIN) > before.index(END):
        raise ValueError(
            f"published/{scale}/README.md must have the lines {BEGIN!r} and {END!r} once each, in this order; put them "
            "back, or remove the page to have it made anew"
        )
    head, rest = before.split(BEGIN)
    return f"{head}{BEGIN}\n\n{facts}\n\n{END}{rest.split(END)[1]}"
