"""What a scale's results are: which of the wanted files are published, and whether runs were told what is configured."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.core.scales import plan

from latreft.files import write_json
from latreft.plans import Plans
from latreft.published.configured import other_setting, resolved
from latreft.published.results import Results, page_of
from latreft.records import ModelInfo, RunRecord

RUN = "runs/words/other/lat_reft/seed0"


@pytest.fixture
def plans(tmp_path: Path) -> Plans:
    toy = plan(tmp_path)
    return Plans(tmp_path, {toy.scale.name: toy})


def record(kind: str, settings: dict[str, Any], attack: str | None = None) -> RunRecord:
    return RunRecord(
        kind=kind,  # type: ignore[arg-type]
        scale="toy",
        dataset="words",
        model=ModelInfo(name="other", family="gpt_neox", revision="random-0", parameters=1),
        method="lat_reft",
        arm="lat_reft",
        seed=0,
        attack=attack,
        settings=settings,
        metrics={},
    )


def test_neither_a_record_without_its_outcomes_nor_they_without_it_is_published(plans: Plans, tmp_path: Path) -> None:
    def missing() -> set[str]:
        return set(Results(plans, "toy", tmp_path).missing)

    everything = missing()
    half = {f"{RUN}/accuracy.json", f"{RUN}/accuracy.parquet"}
    assert half < everything
    write_json(tmp_path / RUN / "accuracy.json", {})
    assert missing() == everything
    (tmp_path / RUN / "accuracy.parquet").touch()
    assert missing() == everything - half


def test_a_run_with_another_value_than_is_configured_is_named_with_both(plans: Plans) -> None:
    w = SimpleNamespace(scale="toy", dataset="words", model="other", arm="lat_reft", seed=0, attack="weak")
    trained, attacked = plans.arm_settings(w), plans.attack_settings(w)
    found = {"train.json": record("train", trained), "attack_weak.json": record("attack", attacked, "weak")}
    assert other_setting(plans, found) is None
    found["attack_weak.json"] = record("attack", attacked | {"rounds": 7}, "weak")
    assert other_setting(plans, found) == "attack_weak.json was made with rounds 7, the configuration has 1"


def test_resolved_settings_have_every_arm_with_its_seeds_and_attacks(plans: Plans) -> None:
    arms = resolved(plans, "toy")["arms"]
    assert arms["words/other/lat_reft"]["seeds"] == [0, 1]
    assert arms["words/other/lat_reft"]["attacks"]["weak"]["rounds"] == 1
    assert arms["words/other/lat_reft__window_1"]["settings"]["window"] == 1


def test_a_page_is_read_with_its_own_line_ends(tmp_path: Path) -> None:
    assert page_of(tmp_path) is None
    (tmp_path / "README.md").write_bytes("é\r\n".encode())
    assert page_of(tmp_path) == "é\r\n"
