"""The whole reproduction at smoke scale, in the project itself: everything is built, and everything in it holds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from latreft.published.rates import check_rates
from latreft.records import RunRecord, long_form, read_record

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "smoke"
FIGURES = ROOT / "figures" / "smoke"
EXPERIMENTS = yaml.safe_load((ROOT / "config" / "experiments.yaml").read_text(encoding="utf-8"))
TABLES = [
    name
    for name, target in (EXPERIMENTS["tables"] | EXPERIMENTS["extra"]).items()
    if "smoke" in target.get("scales", ["smoke"])
]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
FLOORS = {"imdb": 0.62, "enron": 0.85}


def snakemake(*arguments: str, timeout: int, **environment: str) -> str:
    """Run Snakemake in the project, and return what it said; a failure is one of the test."""
    called = subprocess.run(
        [SNAKEMAKE, "--config", "scale=smoke", *arguments],
        cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    said = called.stdout + called.stderr
    assert called.returncode == 0, said[-4000:]
    return said


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Build what is not built yet."""
    snakemake("--", "all", timeout=3600)


@pytest.fixture(scope="module")
def records(built: None) -> dict[Path, RunRecord]:
    """Every record of the scale that its plan wants, by file; each passes the schema on the way."""
    listed = snakemake("--summary", "--", "all", timeout=300)
    wanted = {ROOT / line.split("\t")[0] for line in listed.splitlines() if line.startswith("results/smoke/runs/")}
    unfinished = {"manifest.json", "training.json"}  # no record, and one that finetune.json completes
    files = [path for path in sorted(wanted) if path.suffix == ".json" and path.name not in unfinished]
    assert files
    return {path: read_record(path) for path in files}


def test_a_second_run_has_nothing_to_do() -> None:
    assert "Nothing to be done" in snakemake("--", "all", timeout=300)


@pytest.mark.parametrize("ending", ["csv", "md", "tex"])
@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_there(table: str, ending: str) -> None:
    assert (RESULTS / "tables" / f"{table}.{ending}").stat().st_size > 0


@pytest.mark.parametrize("figure", EXPERIMENTS["figures"])
def test_every_figure_is_there(figure: str) -> None:
    assert (FIGURES / f"{figure}.pdf").read_bytes().startswith(b"%PDF")
    assert (FIGURES / f"{figure}.png").read_bytes().startswith(b"\x89PNG")


def test_every_claim_has_a_verdict_and_runs_at_this_scale_settle_none() -> None:
    claims = pd.read_csv(RESULTS / "claims.csv").set_index("id")
    assert len(claims) == 56 and (RESULTS / "claims.md").is_file() and (RESULTS / "claims.tex").is_file()
    of_runs = claims["reason"] == "smoke scale shows only that everything works"
    assert (claims.loc[of_runs, "verdict"] == "not testable here").all()
    assert claims.loc[of_runs, "estimate"].isna().all()
    assert claims.loc[~of_runs].drop("gpu_hours")["estimate"].notna().all() and (~of_runs).sum() == 20


def test_no_table_misses_a_run() -> None:
    for path in sorted((RESULTS / "tables").glob("*.csv")):
        table = pd.read_csv(path)
        assert len(table), path
        assert "missing" not in table or not table["missing"].any(), path


def test_no_caption_says_that_one_run_was_made_by_mixed_code() -> None:
    for path in sorted((RESULTS / "tables").glob("*.md")):
        assert "mixed code" not in path.read_text(encoding="utf-8"), path


def test_every_rate_has_n_and_an_interval(records: dict[Path, RunRecord]) -> None:
    rates = [
        (path, metric)
        for path, record in records.items()
        for metric in record.metrics.values()
        if metric.unit == "rate"
    ]
    assert rates
    for path, metric in rates:
        assert metric.n is not None and metric.ci_low is not None and metric.ci_high is not None, path
        assert 0 <= metric.ci_low <= metric.value + 1e-12 and metric.value - 1e-12 <= metric.ci_high <= 1, path
        assert abs(metric.value * metric.n - round(metric.value * metric.n)) < 1e-9, path


def test_every_rate_is_recomputed_from_its_examples(records: dict[Path, RunRecord]) -> None:
    checked = check_rates(RESULTS, [str(path.relative_to(RESULTS)) for path in records])
    measured = sum(record.kind in ("finetune", "accuracy", "attack") for record in records.values())
    assert checked.runs == checked.same_hash == measured > 0


@pytest.mark.parametrize("dataset", FLOORS)
def test_every_clean_classifier_has_learnt(records: dict[Path, RunRecord], dataset: str) -> None:
    found = {
        record.model.name: record.metrics["accuracy"].value
        for record in records.values()
        if record.kind == "finetune" and record.dataset == dataset
    }
    assert set(found) == {"tiny-llama", "tiny-qwen2", "tiny-neox"}
    assert min(found.values()) >= FLOORS[dataset], found


def test_records_csv_has_every_record(records: dict[Path, RunRecord]) -> None:
    wanted = long_form(records.values())
    table = pd.read_csv(RESULTS / "records.csv", keep_default_na=False, dtype=str)
    assert table["record"].tolist() == wanted["record"].tolist()
    assert table["metric"].tolist() == wanted["metric"].tolist() and set(table["scale"]) == {"smoke"}


def test_no_table_of_this_scale_shows_the_paper_s_numbers() -> None:
    for path in sorted((RESULTS / "tables").glob("*")):
        text = path.read_text(encoding="utf-8")
        assert "paper:" not in text and "paper_value" not in text and "authors' numbers" not in text, path
        assert "smoke" in text.lower(), path


def test_the_report_is_made_without_a_network_and_shows_every_figure(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    nowhere = "http://127.0.0.1:9"
    snakemake("--report", str(report), "--", "all", timeout=600, http_proxy=nowhere, https_proxy=nowhere)
    text = report.read_text(encoding="utf-8")
    drawn = {
        name
        for name in EXPERIMENTS["figures"]
        if re.search(rf"data:image/png;[^\"]*filename={name}\.png;base64,", text)
    }
    assert drawn == set(EXPERIMENTS["figures"])
