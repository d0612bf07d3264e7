"""The table of the search: which configuration it calls chosen, and what it says of each."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from unit.tables.synthetic_records import Runs, cell

from latreft.plans import load_plans
from latreft.records import rate
from latreft.tables import tuning

ROOT = Path(__file__).parents[3]


def searched(method, value):
    arm = method if value is None else f"{method}__attack_layer_5__epsilon_{value}"
    return cell(method, arm=arm, label=str(value), panel=method, attacks=("gcg_tuning",)) | {"accuracy": False}


def table(folder, results):
    """``results``: (method, epsilon, right before the attack, attacked successfully) of 100 texts."""
    runs, cells = Runs(folder), []
    for method, value, right, hits in results:
        cells.append(searched(method, value))
        metrics = {"accuracy_before": rate(right, 100), "asr": rate(hits, 100)}
        runs.record(cells[-1], "attack", metrics, attack="gcg_tuning")
    return tuning.build(runs.context("tuning", cells))


def chosen(built):
    rows = built.display[built.display["Chosen"] == "yes"]
    return dict(zip(rows["Method"], rows["Settings"], strict=True))


def test_the_lowest_success_among_the_accurate_is_chosen(tmp_path):
    built = table(
        tmp_path,
        [("none", None, 95, 95), ("lat", "1.0", 94, 30), ("lat", "2.0", 91, 10), ("lat", "3.0", 92, 20),
         ("cat", "1.0", 95, 60), ("cat", "2.0", 95, 60), ("cat", "3.0", 96, 60)],
    )  # fmt: skip
    assert chosen(built) == {
        "LAT": "attack layer 5, epsilon 3.0", "CAT": "attack layer 5, epsilon 3.0",
    }  # fmt: skip
    asr = built.frame[(built.frame["metric"] == "asr") & built.frame["chosen"]]
    assert list(asr["value"]) == [0.2, 0.6]


@pytest.mark.parametrize(("accuracies", "best"), [((80, 70), "1.0"), ((93, 70), "1.0"), ((70, 93), "2.0")])
def test_where_none_is_accurate_all_are_candidates(tmp_path, accuracies, best):
    built = table(
        tmp_path, [("none", None, 95, 95), ("lat", "1.0", accuracies[0], 10), ("lat", "2.0", accuracies[1], 20)]
    )
    assert chosen(built)["LAT"] == f"attack layer 5, epsilon {best}"


def test_a_run_that_is_missing_is_shown_and_never_chosen(tmp_path):
    runs = Runs(tmp_path)
    cells = [searched("lat", "1.0"), searched("lat", "2.0")]
    runs.record(cells[1], "attack", {"accuracy_before": rate(95, 100), "asr": rate(99, 100)}, attack="gcg_tuning")
    built = tuning.build(runs.context("tuning", cells))
    assert list(built.display["Chosen"]) == ["", "yes"]
    assert built.display["GCG ASR"][0] == "missing"


@pytest.mark.parametrize(
    "scale", sorted(path.parent.parent.name for path in ROOT.glob("published/*/tables/tuning.csv"))
)
def test_a_scale_uses_what_its_published_search_chose(scale):
    rows = pd.read_csv(ROOT / "published" / scale / "tables" / "tuning.csv")
    own = load_plans(ROOT, {"scale": scale})[scale].scale
    chosen_rows = rows[rows["chosen"] & (rows["metric"] == "asr") & (rows["method"] != "none")]
    assert set(chosen_rows["method"]) == set(own.settings.methods) - {"none"}
    for row in chosen_rows.to_dict("records"):
        settings = own.method(row["dataset"], row["model"], row["method"])
        for part in row["arm"].split("__")[1:]:
            key, value = part.rsplit("_", 1)
            assert getattr(settings, key) == pytest.approx(float(value)), (row["method"], key)
