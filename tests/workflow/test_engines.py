"""Either engine gives the same results, to rounding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from workflow.project import RUN, Project, Server, new_project

RATES = ("accuracy", "asr", "asr_of_correct", "asr_round_trip", "accuracy_before", "accuracy_after")


@pytest.fixture(scope="module")
def by_reference(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Project:
    """Everything built by the reference engine."""
    project = new_project(tmp_path_factory.mktemp("reference") / "project", server)
    project.change(lambda scale: scale.update(engine="reference"))
    said = project.run("--config", "scale=mini", "--", "all")
    assert said.code == 0, said.text
    return project


def records(project: Project) -> dict[str, dict[str, Any]]:
    read = {str(p.relative_to(project.folder)): json.loads(p.read_text()) for p in project.path(RUN).rglob("*.json")}
    return {path: content for path, content in read.items() if "schema_version" in content and "metrics" in content}


def test_records_say_which_engine_made_them(finished: Project, by_reference: Project) -> None:
    for project, engine in ((finished, "reuse"), (by_reference, "reference")):
        found = {r["cost"]["engine"] for r in records(project).values() if r["kind"] in ("train", "attack")}
        assert found == {engine}


def test_metrics_are_equal_to_rounding(finished: Project, by_reference: Project) -> None:
    own, other = records(finished), records(by_reference)
    assert set(own) == set(other) and own
    for path, record in own.items():
        for name, metric in record["metrics"].items():
            expected = other[path]["metrics"][name]["value"]
            tolerance = 0 if name in RATES else 1e-3 * (1 + abs(expected))
            assert metric["value"] == pytest.approx(expected, abs=tolerance), (path, name)


def test_tables_show_the_same_but_for_what_was_measured(finished: Project, by_reference: Project) -> None:
    """FLOPs as counted differ, for that is what reuse saves; every rate in every table is the same."""
    tables = sorted(Path(finished.folder).glob("results/mini/tables/*.csv"))
    assert tables
    for path in tables:
        own, other = pd.read_csv(path), pd.read_csv(by_reference.path("results/mini/tables") / path.name)
        if "metric" in own:
            own, other = (frame[frame["metric"].isin(RATES)].reset_index(drop=True) for frame in (own, other))
        pd.testing.assert_frame_equal(own, other, check_exact=False, rtol=1e-9)
