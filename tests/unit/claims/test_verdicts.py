"""Verdicts follow from records, both ways; what was not run, or cannot be, is not testable and says why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from unit.claims.ledgers import MODEL, Folder, kept, only, project_ledger, wanted

from latreft.claims.ledger import COLUMNS, build
from latreft.claims.quantities import Value
from latreft.claims.settings import Claim, Condition, Rates
from latreft.claims.verdict import NOT_REPRODUCED, NOT_TESTABLE, PARTLY, REPRODUCED, checks, decide, judge
from latreft.claims.wanted import paper_costs
from latreft.files import read_json, write_json
from latreft.records import rate, read_record
from latreft.tables.render import csv_text, latex_text, markdown_text

RUN = f"results/small/runs/imdb/{MODEL}"
NONE, OURS = f"{RUN}/none/seed0/attack_gcg.json", f"{RUN}/lat_reft/seed0/attack_gcg.json"

FALL = Rates(kind="difference", arms=["undefended", "ours"], of="gcg")


def folder(tmp_path: Path, *keys: str, scale: str = "small", **changes: Any) -> Folder:
    return Folder(tmp_path, wanted(scale, only(*keys), **changes))


def first(count: int, n: int = 100) -> np.ndarray:
    """Of ``n`` examples the first ``count`` succeed."""
    return np.arange(n) < count


# --- conditions ---


@pytest.mark.parametrize(
    ("condition", "value", "holds"),
    [
        ({"above": 0}, (0.1, -0.1, 0.3), True),
        ({"above": 0}, (0.0, -0.1, 0.3), False),
        ({"clearly_above": 0}, (0.1, -0.1, 0.3), False),
        ({"clearly_above": 0}, (0.1, 0.01, 0.3), True),
        ({"clearly_above": 0}, (0.1, 0.0, 0.3), False),
        ({"below": 0.1}, (0.05, 0.0, 0.2), True),
        ({"clearly_below": 0.1}, (0.05, 0.0, 0.2), False),
        ({"clearly_below": 0.1}, (0.05, 0.0, 0.09), True),
        ({"near": 0.33, "within": 0.15}, (0.48, 0.4, 0.5), True),
        ({"near": 0.33, "within": 0.15}, (0.49, 0.4, 0.5), False),
        ({"near": 0.18, "within": 0.15, "clearly_above": 0}, (0.18, -0.01, 0.3), False),
    ],
)
def test_a_condition_asks_the_estimate_or_the_interval(
    condition: dict[str, float], value: tuple[float, float, float], holds: bool
) -> None:
    found = checks(Condition.model_validate(condition), Value("x", *value))
    assert all(met for _, met in found) is holds


def test_an_interval_is_not_made_up() -> None:
    with pytest.raises(ValueError, match="correlation has no interval"):
        checks(Condition(clearly_above=0), Value("correlation", 0.9))


def test_reproduced_goes_before_partly_and_each_reason_says_which_part_failed() -> None:
    claim = Claim.model_validate({
        "statement": "", "where": "", "paper": 1, "unit": "x", "scales": ["small"],
        "quantities": {name: {"kind": "theory", "metric": name} for name in ("a", "b")},
        "reproduced": {"a": {"above": 0}, "b": {"above": 0}},
        "partly": [{"a": {"above": 0}}, {"b": {"above": 0}}],
    })  # fmt: skip

    def verdict(a: float, b: float) -> tuple[str, str]:
        return decide(claim, {"a": Value("a", a), "b": Value("b", b)})

    assert verdict(1, 1) == (REPRODUCED, "a above 0, b above 0")
    assert verdict(1, -1) == (PARTLY, "a above 0, b not above 0; but a above 0")
    assert verdict(-1, 1)[0] == PARTLY
    assert verdict(-1, -1) == (NOT_REPRODUCED, "a not above 0, b not above 0")


# --- from records ---


@pytest.mark.parametrize(
    ("none", "ours", "verdict"),
    [(95, 33, REPRODUCED), (95, 48, REPRODUCED), (95, 60, PARTLY), (33, 33, NOT_REPRODUCED), (34, 33, NOT_REPRODUCED)],
)
def test_a_level_and_its_fall(tmp_path: Path, none: int, ours: int, verdict: str) -> None:
    """Near the printed 0.33 and clearly below no defense; only below it; or neither, for an undefended 0.33 is no fall."""
    runs = folder(tmp_path, "main_pythia_gcg")
    runs.attack(NONE, "gcg", first(none))
    runs.attack(OURS, "gcg", first(ours))
    found = runs.judge()["main_pythia_gcg"]
    assert found.verdict == verdict, found.reason
    level = found.values["level"]
    assert (level.estimate, level.n, level.seeds) == (ours / 100, 100, 1)
    assert level.low is not None and level.high is not None and level.low < ours / 100 < level.high
    assert len(found.values["fall"].p) == 1


def test_changing_a_record_changes_the_verdict(tmp_path: Path) -> None:
    runs = folder(tmp_path, "main_pythia_gcg")
    runs.attack(NONE, "gcg", first(95))
    runs.attack(OURS, "gcg", first(30))
    before = runs.judge()["main_pythia_gcg"]
    runs.attack(OURS, "gcg", first(95))
    after = runs.judge()["main_pythia_gcg"]
    assert (before.verdict, after.verdict) == (REPRODUCED, NOT_REPRODUCED)


def test_a_record_that_its_outcomes_contradict_is_an_error_that_names_the_claim(tmp_path: Path) -> None:
    runs = folder(tmp_path, "main_pythia_gcg")
    runs.attack(NONE, "gcg", first(95))
    runs.attack(OURS, "gcg", first(30))
    content = read_json(tmp_path / OURS)
    content["metrics"]["asr"] = rate(29, 100).model_dump()
    write_json(tmp_path / OURS, content)
    with pytest.raises(
        ValueError, match="claim main_pythia_gcg: .*lat_reft/seed0, gcg: the record's asr is 0.29, its outcomes"
    ):
        runs.judge()


@pytest.mark.parametrize(
    ("seeds", "verdict"), [((90, 90, 90), REPRODUCED), ((51, 49, 50), NOT_REPRODUCED), ((53, 53, 50), PARTLY)]
)
def test_a_direction_is_judged_over_seeds(tmp_path: Path, seeds: tuple[int, ...], verdict: str) -> None:
    """The mean difference of three seeds: clear, none, or there but within the interval."""
    runs = folder(tmp_path, "window_trend", seeds=[0, 1, 2])
    generator = np.random.default_rng(0)
    for seed, count in enumerate(seeds):
        runs.attack(f"{RUN}/lat_reft__window_1/seed{seed}/attack_gcg.json", "gcg", generator.permutation(first(count)))
        runs.attack(f"{RUN}/lat_reft/seed{seed}/attack_gcg.json", "gcg", generator.permutation(first(50)))
    found = runs.judge()["window_trend"]
    assert found.verdict == verdict, found.reason
    assert found.values["fall"].seeds == 3 and len(found.values["fall"].p) == 3
    assert found.values["fall"].estimate == pytest.approx(np.mean(seeds) / 100 - 0.5)


def test_arms_are_compared_on_the_seeds_that_all_of_them_have(tmp_path: Path) -> None:
    runs = folder(tmp_path, "main_pythia_gcg", seeds=[0, 1])
    for seed, (none, ours) in enumerate([(95, 30), (95, 90)]):
        runs.attack(NONE.replace("seed0", f"seed{seed}"), "gcg", first(none))
        runs.attack(OURS.replace("seed0", f"seed{seed}"), "gcg", first(ours))
    measured = runs.measured()
    assert measured.value(FALL).estimate == pytest.approx(0.35)
    alone = {**measured.arms, "ours": {"cells": measured.arms["ours"]["cells"][:1], "absent": ""}}
    found = replace(measured, arms=alone).value(FALL)
    assert (found.estimate, found.seeds) == (pytest.approx(0.65), 1)


@pytest.mark.parametrize(("odd", "verdict"), [(0.95, REPRODUCED), (0.935, PARTLY), (0.9, NOT_REPRODUCED)])
def test_flat_accuracy_is_a_narrow_range(tmp_path: Path, odd: float, verdict: str) -> None:
    runs = folder(tmp_path, "layer_acc_flat")
    for path in runs.wanted.records():
        share = odd if "reft_layer_27" in path else 0.95
        runs.accuracy(path, np.arange(400) < round(400 * share))
    assert runs.judge()["layer_acc_flat"].verdict == verdict


@pytest.mark.parametrize(("late", "verdict"), [(0.3, REPRODUCED), (0.88, PARTLY), (0.95, NOT_REPRODUCED)])
def test_a_pattern_comes_from_the_scores_record(tmp_path: Path, late: float, verdict: str) -> None:
    runs = folder(tmp_path, "pattern_actgrad", "pattern_actdiff")
    (path,) = runs.wanted.records()
    runs.record(path, kept(late))
    found = runs.judge()
    assert found["pattern_actgrad"].verdict == verdict
    assert found["pattern_actgrad"].values["gap"].estimate == pytest.approx(0.9 - late)
    assert found["pattern_actdiff"].values["gap"].estimate == pytest.approx(0.75 - late)


@pytest.mark.parametrize(
    ("violations", "vacuous", "verdict"), [(0, 0.1, REPRODUCED), (0, 0.9, PARTLY), (1, 0.1, NOT_REPRODUCED)]
)
def test_a_theorem_is_judged_from_the_theory_record_at_every_scale(
    tmp_path: Path, violations: float, vacuous: float, verdict: str
) -> None:
    for scale in ("smoke", "small", "reviews"):
        runs = folder(tmp_path, "thm1", scale=scale)
        runs.theory(thm1_violations=violations, thm1_vacuous_share=vacuous)
        assert runs.judge()["thm1"].verdict == verdict


def test_a_metric_that_the_theory_record_lacks_is_an_error(tmp_path: Path) -> None:
    runs = folder(tmp_path, "thm1")
    runs.theory(thm1_violations=0)
    with pytest.raises(
        ValueError, match="claim thm1: the theory record has no metric 'thm1_vacuous_share'; it has thm1_viol"
    ):
        runs.judge()


# --- arithmetic ---


def test_counts_are_those_of_the_documentation(tmp_path: Path) -> None:
    """docs/cost.md: 50.7 and 30.5 percent saved, 83 and 70 to 71 percent PGD, 0.872 and 0.862 of no pruning."""
    keys = ("abs_flops", "intro_pgd_share", "prune25_flops", "flops_llama", "params_max", "intro_inner_cut")
    found = folder(tmp_path, *keys).judge()
    values = {key: [round(value.estimate, 3) for value in found[key].values.values()] for key in keys}
    assert values["abs_flops"] == pytest.approx([50.7, 30.5], abs=0.05)
    assert values["intro_pgd_share"] == pytest.approx([82.8, 70.9], abs=0.1)
    assert values["prune25_flops"] == pytest.approx([0.872, 0.862], abs=0.001)
    assert values["flops_llama"] == pytest.approx([118.5, 110.6, 139.8], abs=0.05)
    assert values["params_max"] == pytest.approx([0.02], abs=0.0001)
    assert values["intro_inner_cut"][1] == pytest.approx(100 * (1 - (0.80 + 0.78 + 0.83) / 3), abs=0.7)


def test_arithmetic_is_judged_both_ways(tmp_path: Path) -> None:
    """With forty steps of PGD the method would neither cost what Table 1 says nor be cheap."""
    runs = folder(tmp_path, "flops_qwen", "flops_ours_lowest", "abs_flops")
    found = runs.judge()
    assert [one.verdict for one in found.values()] == [REPRODUCED, REPRODUCED, PARTLY]
    measured = runs.measured()
    dear = {
        name: {
            "title": cost["title"],
            "methods": cost["methods"] | {"lat_reft": cost["methods"]["lat_reft"] | {"steps": 40}},
        }
        for name, cost in measured.costs.items()
    }
    changed = judge(runs.wanted.ledger, replace(measured, costs=dear))
    assert [one.verdict for one in changed] == [NOT_REPRODUCED] * 3


def test_arithmetic_needs_the_paper_scale_s_settings(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("scale: paper\nepsilom: 1\n")
    (tmp_path / "models.yaml").write_text("{}\n")
    assert paper_costs(tmp_path) == {}
    runs = folder(tmp_path, "flops_qwen")
    (one,) = judge(runs.wanted.ledger, replace(runs.measured(), costs={}))
    assert (one.verdict, one.reason) == (NOT_TESTABLE, "the paper scale's settings cannot be read")


# --- not testable here ---


def test_at_smoke_scale_only_arithmetic_and_theory_are_judged(tmp_path: Path) -> None:

    ledger = project_ledger()
    runs = Folder(tmp_path, wanted("smoke"))
    runs.theory(
        thm1_violations=0, thm1_vacuous_share=0.9, thm2_violations=0, thm2_counterexample=0.5, thm3_violations=0,
        thm3_rank_correlation=0.9, thm3_random_relative_error=0.01, thm3_act_grad_share=0.4, prop1_relative_error=1e-9,
    )  # fmt: skip
    found = runs.judge()
    for key, one in found.items():
        if set(ledger.claims[key].scales) & {"arithmetic", "theory"}:
            assert one.verdict != NOT_TESTABLE, key
        else:
            assert one.verdict == NOT_TESTABLE and not one.values, key
            assert key == "gpu_hours" or one.reason == "smoke scale shows only that everything works"
    assert len(found) == 56


def test_other_models_and_missing_runs_say_what_is_missing(tmp_path: Path) -> None:
    runs = folder(tmp_path, "main_llama_gcg", "gpu_hours", "main_pythia_gcg", "pattern_actgrad", "thm2")
    runs.attack(NONE, "gcg", first(95))
    found = runs.judge()
    assert {one.verdict for one in found.values()} == {NOT_TESTABLE}
    assert found["main_llama_gcg"].reason == "judged at paper scale only: it needs Llama-3.1-8B"
    assert "No rerun can show it" in found["gpu_hours"].reason
    assert found["main_pythia_gcg"].reason == f"no run of imdb/{MODEL}/lat_reft/seed0, gcg"
    assert found["pattern_actgrad"].reason == f"no neuron scores of imdb/{MODEL}"
    assert found["thm2"].reason == "no theory record"
    assert folder(tmp_path, "window_trend", scale="reviews").judge()["window_trend"].reason == (
        "claims are judged at small and paper scale"
    )


def test_an_arm_is_not_compared_with_itself(tmp_path: Path) -> None:
    """At a scale whose R2D2 has eight rounds by itself there are no more of them to be seen."""
    runs = folder(tmp_path, "r2d2_more_rounds", methods=wanted().plan.scale.settings.methods | {"r2d2": {"rounds": 8}})
    (path,) = runs.wanted.records()
    runs.attack(path, "gcg", first(20))
    found = runs.judge()["r2d2_more_rounds"]
    assert (found.verdict, found.reason) == (NOT_TESTABLE, f"imdb/{MODEL}: r2d2 would be compared with itself")


def test_records_of_another_scale_are_refused(tmp_path: Path) -> None:
    small, paper = folder(tmp_path, "main_pythia_gcg"), folder(tmp_path, "main_pythia_gcg", scale="paper")
    small.attack(NONE, "gcg", first(95))
    (undefended,) = [path for path in paper.wanted.records() if path.endswith("/none/seed0/attack_gcg.json")]
    (tmp_path / undefended).parent.mkdir(parents=True)
    (tmp_path / undefended).write_bytes((tmp_path / NONE).read_bytes())
    with pytest.raises(ValueError, match="a record of scale 'small' was given to the claims of scale 'paper'"):
        paper.judge()


# --- the ledger ---


def test_the_ledger_shows_every_claim_with_the_records_behind_it(tmp_path: Path) -> None:
    runs = folder(tmp_path, "main_pythia_gcg", "main_llama_gcg", "flops_qwen", "window_trend")
    for path, count in ((NONE, 95), (OURS, 30), (f"{RUN}/lat_reft__window_1/seed0/attack_gcg.json", 60)):
        runs.attack(path, "gcg", first(count))
    table = build(list(runs.judge().values()), "small", "The paper's claims, judged")
    frame = table.frame.set_index("id")
    assert list(table.frame.columns) == COLUMNS and list(frame.index) == list(runs.wanted.ledger.claims)
    ours = frame.loc["main_pythia_gcg"]
    assert (ours["verdict"], ours["estimate"], ours["n"], ours["quantity"]) == (REPRODUCED, 0.3, 100, "level")
    digests = [read_record(tmp_path / path).digest()[:16] for path in (OURS, NONE)]
    assert ours["records"].split(";") == digests and ours["p"] == ""  # of a rate
    assert float(frame.loc["window_trend", "p"]) < 1e-6
    assert ours["runs"].split(";") == [f"imdb/{MODEL}/lat_reft", f"imdb/{MODEL}/none"]
    assert "fall: GCG ASR, undefended − ours = 0.650" in ours["compared"] and "p <0.001" in ours["compared"]
    assert pd.isna(frame.loc["main_llama_gcg", "estimate"]) and frame.loc["flops_qwen", "records"] == ""
    assert "reproduced: 3, partly: 0, not reproduced: 0, not testable here: 1" in table.caption
    assert (
        "Of the 3 that were judged, 2 rest on rates of arms, the others on counts, theorems and patterns of pruning."
        in table.caption
    )
    texts = [csv_text(table), markdown_text(table), latex_text(table)]
    assert all("not testable here" in text and "Llama" in text for text in texts)
    assert r"main\_pythia\_gcg" in texts[2] and r"p{0.11\textwidth}" in texts[2]
    again = build(list(runs.judge().values()), "small", "The paper's claims, judged")
    assert [csv_text(again), markdown_text(again), latex_text(again)] == texts
