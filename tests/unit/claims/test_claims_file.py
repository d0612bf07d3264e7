"""``config/claims.yaml`` has every claim of the paper, and a fault in it is one line that says where."""

from __future__ import annotations

import copy
import csv
from typing import Any

import pytest
import yaml
from unit.claims.ledgers import CONFIG, PAPER_NUMBERS, costs, only, paper_values, project_ledger, wanted

from latreft.claims.settings import ARMS_OF, EVERYWHERE, Claim, Condition, Ledger, Rates, ledger
from latreft.settings import SettingsError

PAPER = {row["id"]: row for row in csv.DictReader(PAPER_NUMBERS.open(encoding="utf-8"))}
LEDGER = project_ledger()
SMALL: dict[str, Any] = {
    "judged_at": ["small"],
    "not_judged_at": {"smoke": "it is a toy"},
    "arms": {
        "none": {"target": "main_imdb", "dataset": "imdb", "label": "none"},
        "ours": {"target": "main_imdb", "dataset": "imdb", "label": "lat_reft"},
    },
    "claims": {
        "helps": {
            "statement": "It helps.", "where": "1", "paper": 0.5, "unit": "rate", "scales": ["small"],
            "quantities": {
                "fall": {"kind": "difference", "arms": ["none", "ours"], "of": "gcg"},
                "cost": {"kind": "arithmetic", "what": "tflops"},
            },
            "reproduced": {"fall": {"clearly_above": 0}},
            "partly": [{"fall": {"above": 0}}],
        },
    },
}  # fmt: skip


def changed(path: str, value: Any) -> dict[str, Any]:
    """The small ledger with one entry set, or dropped where ``value`` is None."""
    content = copy.deepcopy(SMALL)
    place: Any = content
    *parents, last = path.split(".")
    for part in parents:
        place = place[part]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


def fault(content: dict[str, Any]) -> str:
    with pytest.raises(SettingsError) as error:
        ledger(content, "config/claims.yaml")
    return str(error.value)


# --- the paper's claims ---


def test_every_claim_of_the_paper_is_there_once() -> None:
    keys = [node.value for node, _ in _mapping(_mapping_of_file()["claims"])]
    assert len(keys) == len(set(keys)) == 56
    assert set(keys) == set(PAPER) and len(PAPER) == 56


def _mapping(node: yaml.MappingNode) -> list[tuple[Any, Any]]:
    return node.value


def _mapping_of_file() -> dict[str, Any]:
    """The file's top level as nodes: a key that stands there twice is still there twice."""
    root = yaml.compose((CONFIG / "claims.yaml").read_text(encoding="utf-8"))
    return {key.value: value for key, value in _mapping(root)}


@pytest.mark.parametrize("key", PAPER)
def test_the_paper_s_value_is_the_paper_s(key: str) -> None:
    row, claim = PAPER[key], LEDGER.claims[key]
    words = [claim.paper] if isinstance(claim.paper, float) else claim.paper.split()
    numbers = [float(word) for word in words if str(word).replace(".", "").isdigit()]
    assert len(numbers) <= 1 and (numbers or row["value"] in ("", "0", "rho") or row["operator"] == "<="), key
    of_rate = row["unit"] == "percent" and claim.unit == "rate"
    for number in numbers:
        assert number == pytest.approx(float(row["value"]) / (100 if of_rate else 1))
    assert claim.where == row["where"]


def test_every_claim_has_a_test_or_says_why_not() -> None:
    for key, claim in LEDGER.claims.items():
        assert claim.not_testable or claim.scales, key
    assert [key for key, claim in LEDGER.claims.items() if claim.not_testable] == ["gpu_hours"]
    assert {scale for claim in LEDGER.claims.values() for scale in claim.scales} == {"small", "paper", *EVERYWHERE}


def test_claims_of_other_models_say_what_they_need() -> None:
    for key, claim in LEDGER.claims.items():
        arms = [LEDGER.arms[name] for rates in claim.rates() for name in rates.arms]
        own = {arm.model for arm in arms} - {"main", "all"}
        assert bool(own) == bool(claim.needs) == (claim.scales == ["paper"]), key


def test_a_printed_number_is_where_its_condition_looks() -> None:
    for key, claim in LEDGER.claims.items():
        centres = {one.near for one in claim.reproduced.values() if one.near is not None} - {0.0}
        if not isinstance(claim.paper, str) and centres:
            assert centres == {claim.paper}, key


def test_every_arm_is_used_and_found_at_the_scales_that_judge() -> None:
    used = {name for claim in LEDGER.claims.values() for rates in claim.rates() for name in rates.arms}
    assert used == set(LEDGER.arms)
    arms = wanted().arms
    assert arms and not [name for name, arm in arms.items() if arm["absent"]]
    assert all(arm["cells"] for arm in arms.values())


def test_arithmetic_needs_no_run_of_any_scale() -> None:
    arithmetic = [key for key, claim in LEDGER.claims.items() if claim.scales == ["arithmetic"]]
    of = wanted(ledger=only(*arithmetic))
    assert of.records() == of.outcomes() == [] and of.arms == {}
    assert list(costs()) == ["llama-3.1-8b", "qwen2.5-3b", "pythia-1.4b"]


def test_a_scale_that_does_not_judge_wants_the_theory_record_only() -> None:
    of = wanted("smoke")
    assert of.records() == ["results/smoke/runs/imdb/smollm2-135m/theory.json"] and of.outcomes() == []


# --- faults ---


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("claims.helps.statment", "x", "claims.helps: unknown key 'statment' (value 'x')"),
        ("claims.helps.unit", None, "claims.helps: key 'unit' is missing"),
        ("claims.helps", "yes", "claims.helps: expected keys and values, found 'yes'"),
        ("claims.helps.scales", ["smal"], "claims.helps: unknown scale 'smal'; known are arithmetic, small, theory"),
        ("claims.helps.scales", [], "claims.helps: key 'scales', 'quantities', 'reproduced' or 'partly' is missing"),
        ("claims.helps.not_testable", "no", "claims.helps: key 'not_testable' excludes scales"),
        ("claims.helps.quantities.fall.kind", "diff", "claims.helps: key 'quantities.fall' has value"),
        ("claims.helps.quantities.fall.arms", ["none"], "key 'arms' has value ['none']: difference is of 2"),
        ("claims.helps.quantities.fall.arms", ["none", "our"], "claims.helps: unknown arm 'our'; arms are none, ours"),
        ("claims.helps.quantities.fall.metric", "loss", "key 'metric' has value 'loss': arms are compared by accuracy, asr"),
        ("claims.helps.quantities.cost.what", "watts", "key 'what' has value 'watts'; known are inner_loop_cut, lora_share"),
        ("claims.helps.quantities.cost.what", "lat", "claims.helps: key 'what' has value 'lat'"),
        ("claims.helps.reproduced", {"rise": {"above": 0}}, "key 'reproduced' names 'rise'; quantities are fall, cost"),
        ("claims.helps.partly", [{"cost": {"clearly_above": 0}}], "key 'partly' asks for an interval of 'cost'"),
        ("claims.helps.reproduced.fall", {"near": 1}, "key 'near' and key 'within' belong together"),
        ("claims.helps.reproduced.fall", {}, "a condition is one of above, below"),
        ("claims.helps.reproduced.fall", {"over": 1}, "unknown key 'reproduced.fall.over' (value 1)"),
        ("arms.none.label", None, "arms.none: key 'label' is missing"),
        ("arms.none.pannel", "main", "arms.none: unknown key 'pannel' (value 'main')"),
        ("arms.none.model", "all", "claims.helps: key 'across_models' is missing; none is of several models"),
        ("not_judged_at", {"small": "no"}, "'small' is both in judged_at and in not_judged_at"),
        ("judged_on", ["small"], "config/claims.yaml: unknown key 'judged_on'"),
    ],
)  # fmt: skip
def test_a_fault_names_file_claim_and_value(path: str, value: Any, words: str) -> None:
    message = fault(changed(path, value))
    assert message.startswith("config/claims.yaml: ") and words in message, message


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("arms.ours.target", "main_imbd", "arm ours: no target is called 'main_imbd'; targets are main_imdb"),
        ("arms.ours.panel", "window", "arm ours: no panel 'window'; there are main"),
        ("arms.ours.dataset", "imbd", "arm ours: no data set 'imbd'; there are imdb"),
        ("arms.ours.label", "latreft", "arm ours: no label 'latreft'; there are none, r2d2, lat, cat, lat_reft"),
        ("arms.ours.model", "pythia", "arm ours: unknown model 'pythia'; models are llama-3.1-8b"),
        ("claims.helps.quantities.fall.of", "prefix_gcg", "arm none: no result 'prefix_gcg'; there are accuracy, random_token, gcg"),
    ],
)  # fmt: skip
def test_an_arm_that_experiments_yaml_does_not_have_is_named(path: str, value: Any, words: str) -> None:
    of = wanted(ledger=ledger(changed(path, value), "config/claims.yaml"))
    with pytest.raises(SettingsError) as error:
        of.records()
    assert str(error.value).startswith("config/claims.yaml: claims.helps: ") and words in str(error.value)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ({"target": "pruning", "dataset": "imdb", "label": "0.9"}, "the small scale does not sweep 0.9 in pruning"),
        ({"target": "main_imdb", "dataset": "imdb", "label": "none", "model": "qwen2.5-3b"}, "has no model qwen2.5-3b"),
    ],
)
def test_what_one_scale_lacks_is_a_reason_and_no_fault(arm: dict[str, Any], words: str) -> None:
    found = wanted(ledger=ledger(changed("arms.ours", arm), "config/claims.yaml")).arms["ours"]
    assert found["cells"] == [] and words in found["absent"]


def test_a_scale_without_a_target_s_data_set_has_no_such_arm() -> None:
    content = changed("arms.ours", {"target": "pruning_by_dataset", "dataset": "enron", "label": "0.25"})
    datasets = {"imdb": paper_values()["datasets"]["imdb"]}
    of = wanted(ledger=ledger(content, "config/claims.yaml"), datasets=datasets)
    assert "the small scale is not offered pruning_by_dataset" in of.arms["ours"]["absent"]


# --- the page ---


@pytest.mark.parametrize("model", [Ledger, Claim, Rates, Condition])
def test_the_page_has_every_key(model: Any) -> None:
    page = (CONFIG.parent / "docs" / "claims.md").read_text(encoding="utf-8")
    assert not [key for key in model.model_fields if f"`{key}`" not in page]
    assert not [kind for kind in ARMS_OF if f"`{kind}`" not in page]
