"""README shows the published main table beside the paper's, and what it shows is what is published."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.tables.synthetic_records import Runs, main_imdb

from latreft.published import front_page
from latreft.tables import table_builder
from latreft.tables.render import csv_text

ROOT = Path(__file__).parents[3]
PAPER = ROOT / "resources" / "paper"


@pytest.fixture
def published(tmp_path):
    runs = Runs(tmp_path / "runs")
    cells = main_imdb(runs, models=("pythia_1.4b",))
    table = table_builder("main_imdb")(runs.context("main_imdb", cells))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / front_page.FILE).write_text(csv_text(table))
    return tmp_path


def test_each_method_stands_beside_the_papers(published):
    text = front_page.main_table(published, PAPER, "pythia_1.4b", "Own-1M")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert "GCG ASR, Own-1M" in lines[0] and "paper: GCG ASR, Pythia-1.4B" in lines[0]
    (ours,) = [line for line in lines if line.startswith("| LAT-ReFT")]
    assert ours.rstrip(" |").endswith("0.33") and "[" in ours
    assert len(lines) == 2 + 5 and "different models" in text


def test_verdicts_are_counted_apart_for_claims_on_arms_and_others(tmp_path):
    assert front_page.verdicts(tmp_path) == ""
    lines = [
        "id,verdict,seeds",
        "a,reproduced,3",
        "b,not reproduced,3",
        "c,partly,",
        "d,reproduced,",
        "e,not testable here,",
    ]
    (tmp_path / "claims.csv").write_text("\n".join(lines))
    said = front_page.verdicts(tmp_path)
    assert (
        f"paper's 5 claims, by tolerances from before the runs ([claims](published/{tmp_path.name}/claims.md))" in said
    )
    assert "of 2 on rates of arms 1 reproduced, 0 partly, 1 not reproduced;" in said
    assert (
        "of 2 on counts, theorems and patterns of pruning 1 reproduced, 1 partly, 0 not reproduced. 1 are not" in said
    )


def test_a_page_takes_it_between_its_markers_only():
    begin, end = front_page.markers("small")
    page = f"before\n{begin}\nold\n{end}\nafter"
    assert front_page.with_table(page, "small", "new") == f"before\n{begin}\n\nnew\n\n{end}\nafter"
    assert front_page.with_table(page, "other", "new") == page


@pytest.mark.parametrize(
    "scale", sorted(p.parent.parent.name for p in ROOT.glob(f"published/*/tables/{front_page.FILE}"))
)
def test_readme_shows_what_is_published(scale, tmp_path):
    readme = (ROOT / "README.md").read_text()
    root = tmp_path / "root"
    root.mkdir()
    for name in ("config", "published", "resources"):
        (root / name).symlink_to(ROOT / name)
    (root / "README.md").write_text(readme)
    front_page.update(root, scale)
    assert (root / "README.md").read_text() == readme
    assert front_page.markers(scale)[0] in readme
