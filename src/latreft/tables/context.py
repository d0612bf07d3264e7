"""What a table or figure is built from: its cells, the run records, and the names to show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latreft.records import RunRecord, long_form, read_record
from latreft.tables import names
from latreft.tables.collect import PLACE, collect, normal_cells, pool_seeds, sizes
from latreft.tables.contradictions import check

if TYPE_CHECKING:
    import pandas as pd

PAPER_NUMBERS = Path(__file__).parents[3] / "resources" / "paper"
PAPER_SCALE = "paper"


@dataclass(frozen=True)
class Context:
    """One target at one scale.

    ``titles`` maps ``models`` and ``datasets`` (and, to overrule ours, ``methods`` and ``attacks``) to names by key.
    ``manifests`` are data manifests; ``scores`` are score files, where ``artefacts.SCORES`` puts them; ``outcomes`` are
    attacks' per-example outcomes, where ``artefacts.ATTACK_OUTCOMES`` puts them.
    """

    target: str
    title: str
    scale: str
    scale_title: str
    cells: list[dict[str, Any]]
    records: list[RunRecord] = field(default_factory=list)
    titles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    manifests: list[Path] = field(default_factory=list)
    scores: list[Path] = field(default_factory=list)
    outcomes: list[Path] = field(default_factory=list)
    paper: Path = PAPER_NUMBERS

    @cached_property
    def results(self) -> pd.DataFrame:
        """One row a cell, source and metric; see :func:`latreft.tables.collect.collect`."""
        return collect(self.cells, long_form(self.records), self.scale)

    @cached_property
    def pooled(self) -> pd.DataFrame:
        """The results with seeds pooled."""
        return pool_seeds(self.results)

    @property
    def places(self) -> list[dict[str, Any]]:
        """The cells, one a place, in the order of ``place``: those of several seeds once."""
        first: dict[tuple[str, ...], dict[str, Any]] = {}
        for cell in normal_cells(self.cells):
            first.setdefault(tuple(str(cell[key]) for key in PLACE[1:]), cell)
        return list(first.values())

    def name(self, kind: str, key: str) -> str:
        """The name to show of a model, data set, method or attack."""
        own = {"methods": names.METHODS, "attacks": names.ATTACKS}.get(kind, {})
        return self.titles.get(kind, {}).get(key, own.get(key, key))

    def dataset_words(self, keys: Iterable[str]) -> str:
        """The data sets that a figure shows, each once."""
        shown = dict.fromkeys(self.name("datasets", key) for key in keys)
        return f"data set{'s' * (len(shown) > 1)}: {', '.join(shown)}"

    def source_name(self, source: str) -> str:
        """The name to show of a kind of record or of an attack."""
        return "accuracy" if source in ("accuracy", "finetune") else self.name("attacks", source)

    @property
    def scale_words(self) -> str:
        """The scale as every caption says it."""
        if self.scale in self.scale_title.lower().split():
            return self.scale_title[0].upper() + self.scale_title[1:]
        return f"Scale: {self.scale} ({self.scale_title})" if self.scale_title else f"Scale: {self.scale}"

    @property
    def n_words(self) -> str:
        """The number of examples behind the rates shown."""
        return sizes(
            self.pooled, {str(source): self.source_name(str(source)) for source in self.pooled["source"].unique()}
        )

    @property
    def seeds(self) -> int:
        """How many seeds each value should be a mean of."""
        return int(self.pooled["seeds_wanted"].max()) if len(self.pooled) else 1

    @property
    def code_words(self) -> list[str]:
        """A warning where runs of one kind were made by different code."""
        mixed = mixed_code(self.records)
        return [f"mixed code versions: {', '.join(mixed)}"] if mixed else []


def mixed_code(records: Iterable[RunRecord]) -> dict[str, int]:
    """Runs of one kind, method and attack that different code made: their name → the number of versions, at most.

    A model's family is code of its own jobs only, so versions are told apart within a family.
    """
    versions: dict[tuple[str, str], set[str]] = {}
    for record in records:
        run = " ".join(filter(None, (record.kind, record.method, record.attack)))
        versions.setdefault((run, record.model.family), set()).add(str(record.provenance.get("code")))
    mixed: dict[str, int] = {}
    for (run, _), found in sorted(versions.items()):
        if len(found) > 1:
            mixed[run] = max(len(found), mixed.get(run, 0))
    return mixed


def read_records(paths: Iterable[str | Path]) -> list[RunRecord]:
    """The records that are there, each once; one that is not is for the target to show as missing.

    Raises ``ValueError`` for records that contradict themselves, their paths or each other.
    """
    records = {path: read_record(path) for path in map(Path, paths) if path.is_file()}
    check(records)
    return list(records.values())


def snakemake_context(snakemake: Any) -> Context:
    """The context of a Snakemake job.

    ``params``: target, title, scale, scale_title, cells, titles. ``input``: records; for targets that need them
    manifests (data), scores and outcomes; paper (files of the paper's numbers, if the DAG is to see them).
    """

    def files(name: str) -> list[Path]:
        given = getattr(snakemake.input, name, None) or []
        return [Path(given)] if isinstance(given, str) else [Path(path) for path in given]

    params = snakemake.params
    paper = files("paper")
    return Context(
        target=params.target,
        title=params.title,
        scale=params.scale,
        scale_title=params.scale_title,
        cells=[dict(cell) for cell in params.cells],
        records=read_records(files("records")),
        titles=params.titles,
        manifests=files("manifests"),
        scores=files("scores"),
        outcomes=files("outcomes"),
        paper=paper[0].parent if paper else PAPER_NUMBERS,
    )
