"""The part of the project's README that shows a published main table beside the paper's, and counts the verdicts."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from latreft.claims.ledger import WITHOUT_ARMS, on_arms_and_others
from latreft.claims.verdict import NOT_TESTABLE, VERDICTS
from latreft.files import write_text
from latreft.plans import load_plans
from latreft.published import folder
from latreft.tables import names, paper
from latreft.tables.layout import rate, text_of
from latreft.tables.render import markdown_table

FILE = "main_imdb.csv"
PAPER_MODEL = "Pythia-1.4B"
"""The paper's model that the small scale's stands for: the main one of its ablations."""
SHOWN = {
    "Accuracy": ("accuracy", "accuracy", "accuracy"),
    "RandomToken ASR": ("random_token", "asr", "asr_random_token"),
    "GCG ASR": ("gcg", "asr", "asr_gcg"),
}
"""Title → source and metric of ours, and column of the paper's table."""


def markers(scale: str) -> tuple[str, str]:
    """The lines in README between which the table of ``scale`` stands."""
    return f"<!-- main table of {scale}: begin; written by tools/publish.py -->", f"<!-- main table of {scale}: end -->"


def update(root: Path, scale: str) -> None:
    """Put main table and verdicts of the published ``scale`` into README, where there are any and README has a place."""
    page = current(root, scale, root / "published" / scale)
    if page is not None:
        write_text(root / "README.md", page)


def current(root: Path, scale: str, published: Path) -> str | None:
    """README with main table and verdicts of ``published``; ``None`` where README or table is missing, or README has no place for it."""
    readme = root / "README.md"
    page = readme.read_bytes().decode("utf-8") if readme.is_file() else ""
    if markers(scale)[0] not in page or not (published / "tables" / FILE).is_file():
        return None
    own = load_plans(root, {"scale": scale})[scale].scale
    model = own.settings.main_model
    table = main_table(published, root / "resources" / "paper", model, own.models[model].title)
    said = verdicts(published)
    return with_table(page, scale, f"{table}\n\n{said}" if said else table)


def verdicts(published: Path) -> str:
    """How often each verdict was given, those on rates of arms apart from the others; empty where no claim is judged yet."""
    file = published / folder.CLAIMS[0]
    if not file.is_file():
        return ""
    claims = pd.read_csv(file)
    about = tuple(zip(on_arms_and_others(claims), ("rates of arms", WITHOUT_ARMS), strict=True))
    said = "; ".join(f"of {len(some)} on {what} {_counts(some['verdict'])}" for some, what in about if len(some))
    untested = int((claims["verdict"] == NOT_TESTABLE).sum())
    return (
        f"Verdicts on the paper's {len(claims)} claims, by tolerances from before the runs "
        f"([claims](published/{published.name}/claims.md)): {said}. {untested} are {NOT_TESTABLE}."
    )


def _counts(verdicts: pd.Series) -> str:
    counts = verdicts.value_counts()
    return ", ".join(f"{counts.get(verdict, 0)} {verdict}" for verdict in VERDICTS if verdict != NOT_TESTABLE)


def main_table(published: Path, papers: Path, model: str, title: str) -> str:
    """Both tables as one, a row a method; ``title`` is the name to show of our ``model``.

    Ours with 95% Wilson intervals; the paper's numbers come without.
    """
    ours = pd.read_csv(published / "tables" / FILE)
    ours = ours[ours["model"] == model]
    theirs = pd.read_csv(papers / "table_main_imdb.csv")
    rows = []
    for method in dict.fromkeys(ours["method"]):
        row = {"Method": names.METHODS.get(method, method)}
        for head, (source, metric, _) in SHOWN.items():
            row[f"{head}, {title}"] = _own(ours, method, source, metric)
        for head, (*_, column) in SHOWN.items():
            value = paper.number(theirs, column, model=PAPER_MODEL, method=paper.METHODS[method])
            row[f"paper: {head}, {PAPER_MODEL}"] = f"{value:.2f}"
        rows.append(row)
    return f"{markdown_table(pd.DataFrame(rows), 1)}\n\n{_words(ours)}"


def _own(ours: pd.DataFrame, method: str, source: str, metric: str) -> str:
    at = (ours["method"] == method) & (ours["source"] == source) & (ours["metric"] == metric)
    found = ours[at].to_dict("records")
    return text_of(next(iter(found), None), rate)


def _words(ours: pd.DataFrame) -> str:
    """What the numbers of ours are over."""
    of = {source: ours[(ours["source"] == source) & ours["n"].notna()] for source in ("accuracy", "gcg")}
    counts = {source: int(rows["n"].max()) for source, rows in of.items()}
    seeds = sorted({int(count) for count in of["gcg"]["seeds"]})
    trained = f"{seeds[-1]} seeds" if seeds[-1] > 1 else "one seed"
    return (
        f"Ours: {counts['gcg']:,} attacked texts, accuracy on {counts['accuracy']:,}, mean of {trained}; in brackets 95% "
        f"Wilson intervals with the n of one seed, which say nothing of how trainings differ. The paper's: {PAPER_MODEL}, "
        "100 attacked texts, no intervals. They are of different models; what can be compared are the effects of the methods."
    )


def with_table(page: str, scale: str, table: str) -> str:
    """``page`` with ``table`` between the markers of ``scale``; unchanged where it has none."""
    begin, end = markers(scale)
    if begin not in page or end not in page:
        return page
    head, rest = page.split(begin)
    return f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
