"""A scale's results as they are published: what its targets want of them, what is there, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from latreft.files import write_json, write_text
from latreft.plans import Plans
from latreft.published import folder
from latreft.published.configured import resolved
from latreft.published.facts import Facts, page
from latreft.published.rates import Checked
from latreft.published.spent import by_arm
from latreft.records import RunRecord, read_record
from latreft.tables.contradictions import check


@dataclass(frozen=True)
class Results:
    """The results of ``scale`` in ``place``, its folder."""

    plans: Plans
    scale: str
    place: Path

    @cached_property
    def wanted(self) -> folder.Contents:
        return folder.contents(self.plans, self.scale)

    @cached_property
    def found(self) -> folder.Contents:
        return self.wanted.present(self.place)

    @property
    def missing(self) -> list[str]:
        """What the targets want and is not published, sorted. A record without its outcomes is not, nor they without it."""
        return sorted(set(self.wanted.all()) - set(self.found.all()))

    @cached_property
    def records(self) -> Mapping[str, RunRecord]:
        """Every record by its path. Raises ``ValueError`` as tables do, where records contradict themselves or each other."""
        records = {path: read_record(self.place / path) for path in self.found.records}
        check({Path(path): record for path, record in records.items()})
        return records

    def unbuilt(self, root: Path) -> list[str]:
        """The targets whose files are not all below ``root``."""
        wanted = [*self.plans.tables(self.scale), *self.plans.figures(self.scale), *self.plans.ledger(self.scale)]
        return sorted({Path(path).stem for path in wanted if not (root / path).is_file()})


def page_of(published: Path) -> str | None:
    """The page of a published folder as it is, if there is one."""
    path = published / folder.README
    return path.read_bytes().decode("utf-8") if path.is_file() else None


def describe(results: Results, root: Path, checked: Checked, before: str | None) -> None:
    """Write what is published beside tables and figures where ``folder.built`` looks for it below ``root``.

    That is the seconds of arms, resolved settings, and the page ``before`` with new facts. ``root`` holds the tables and
    figures.
    """
    places = {name: root / place for name, place in folder.built(results.scale).items()}
    records = list(results.records.values())
    plan = results.plans.by_scale[results.scale]
    facts = Facts(plan, records, checked, results.missing, results.unbuilt(root))
    write_text(places[folder.SECONDS], by_arm(records).to_csv(index=False, lineterminator="\n"))
    write_json(places[folder.SETTINGS], resolved(results.plans, results.scale))
    write_text(places[folder.README], page(before, results.scale, facts.text()))
