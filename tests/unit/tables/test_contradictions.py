"""A record that contradicts itself, its path or another record is shown nowhere; one that does not, is."""

from __future__ import annotations

import json
import runpy
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from unit.tables.synthetic_records import Runs, cell

from latreft import artefacts
from latreft.files import write_json
from latreft.records import Metric, rate
from latreft.tables.context import read_records
from latreft.tables.contradictions import impossible

ROOT = Path(__file__).parents[3]
OWN = cell("lat_reft", attacks=("random_token", "gcg"))
RUN = "runs/imdb/pythia_1.4b/lat_reft/seed0"


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """All records of one arm, in which 33 of 100 texts are flipped by GCG, and of its classifier."""
    runs = Runs(tmp_path)
    runs.write(OWN, asr={"gcg": 0.33})
    runs.classifier("imdb", "pythia_1.4b")
    classifier = cell("scores", arm="classifier")
    runs.record(classifier, "scores", {"keep_act_grad_layer_1": Metric(value=0.335, unit="share")})
    runs.record(classifier | {"method": "theory"}, "theory", {"thm1_holds": Metric(value=0.5, unit="share", n=3)})
    return runs


def path_of(runs: Runs, name: str) -> Path:
    (path,) = [path for path in runs.paths if path.match(name)]
    return path


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    write_json(path, content)


def refusal(runs: Runs) -> str:
    with pytest.raises(ValueError) as raised:
        read_records(runs.paths)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_records_of_every_kind_that_agree_are_read(runs: Runs) -> None:
    assert {record.kind for record in read_records(runs.paths)} == set(artefacts.RECORD_OF)


# --- rates ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"value": 0.34}, "asr is 0.34 with n = 100, of which the 95% Wilson interval is [0.2"),
        ({"value": 0.335}, "asr is 0.335 with n = 100, which is no whole number of examples (33.5)"),
        ({"value": 0.3300001}, "asr is 0.3300001 with n = 100, which is no whole number of examples (33.00001)"),
        ({"n": 200}, "asr is 0.33 with n = 200, of which the 95% Wilson interval is [0.2"),
        ({"n": 50}, "asr is 0.33 with n = 50, which is no whole number of examples (16.5)"),
        ({"n": 0}, "asr is 0.33 with n = 0, which is no share of at least one example"),
        ({"ci_low": 0.25}, ", not [0.25, 0.42"),
        ({"ci_high": 0.5}, ", 0.5]"),
        ({"unit": "share", "n": None}, "asr is 0.33 with n = None, which is no share of at least one example"),
        ({"value": 1.5, "ci_high": 2.0}, "asr is 1.5 with n = 100, which is no share of at least one example"),
    ],
)  # fmt: skip
def test_a_rate_that_no_counts_give_is_named_with_its_file(runs: Runs, changes: dict[str, Any], words: str) -> None:
    path = path_of(runs, "attack_gcg.json")
    edit(path, lambda record: record["metrics"]["asr"].update(changes))
    said = refusal(runs)
    assert said.startswith(f"{path}: asr is ") and words in said


@pytest.mark.parametrize("n", [1, 3, 7, 97, 200, 22253, 10**6 + 3])
def test_every_rate_that_counts_give_is_possible(n: int) -> None:
    for successes in {0, 1, n // 3, n // 2, n - 1, n}:
        assert impossible(rate(successes, n)) is None
        rounded = json.loads(json.dumps(rate(successes, n).model_dump()))
        assert impossible(Metric.model_validate(rounded)) is None


def test_metrics_without_an_interval_may_be_any_number() -> None:
    assert impossible(Metric(value=0.335, unit="share", n=100)) is None
    assert impossible(Metric(value=-7.5, unit="nats", n=3)) is None
    assert impossible(Metric(value=2.5, unit="value")) is None


# --- places ---


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("attack_gcg.json", {"seed": 1}, "seed is 1 in the record and 0 by its path"),
        ("attack_gcg.json", {"attack": "prefix_gcg"}, "attack is prefix_gcg in the record and gcg by its path"),
        ("attack_gcg.json", {"arm": "lat"}, "arm is lat in the record and lat_reft by its path"),
        ("attack_gcg.json", {"kind": "accuracy"}, "kind is accuracy in the record and attack by its path"),
        ("accuracy.json", {"dataset": "enron"}, "dataset is enron in the record and imdb by its path"),
        ("accuracy.json", {"attack": "gcg"}, "attack is gcg in the record and None by its path"),
        ("train.json", {"seed": 3}, "seed is 3 in the record and 0 by its path"),
        (
            "cost.json",
            {"arm": "lat_reft__window_1"},
            "arm is lat_reft__window_1 in the record and lat_reft by its path",
        ),
        ("finetune.json", {"arm": "none"}, "arm is none in the record and classifier by its path"),
        ("scores.json", {"dataset": "enron"}, "dataset is enron in the record and imdb by its path"),
        ("theory.json", {"kind": "scores"}, "kind is scores in the record and theory by its path"),
    ],
)
def test_a_record_of_another_run_than_its_path_says_is_named(
    runs: Runs, name: str, changes: dict[str, Any], words: str
) -> None:
    path = path_of(runs, name)
    edit(path, lambda record: record.update(changes))
    assert refusal(runs).startswith(f"{path}: {words}; ")


def test_a_record_of_another_model_is_named(runs: Runs) -> None:
    edit(path_of(runs, "accuracy.json"), lambda record: record["model"].update(name="other"))
    assert "model is other in the record and pythia_1.4b by its path" in refusal(runs)


def test_a_copied_record_is_not_another_seeds(runs: Runs) -> None:
    path = path_of(runs, "attack_gcg.json")
    copy = path.parents[1] / "seed1" / path.name
    copy.parent.mkdir()
    shutil.copyfile(path, copy)
    runs.paths.append(copy)
    assert refusal(runs).startswith(f"{copy}: seed is 0 in the record and 1 by its path")


def test_where_no_record_belongs_none_is_read(runs: Runs) -> None:
    path = path_of(runs, "attack_gcg.json")
    runs.paths = [path.rename(path.with_name("gcg.json"))]
    assert "no record has its place there" in refusal(runs)


def test_a_path_may_be_relative_and_results_may_lie_anywhere(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs.folder / "results" / "small")
    assert read_records([Path(RUN) / "accuracy.json"])


# --- inputs ---


def trained(runs: Runs, own: dict[str, Any], kind: str, defense: str, attack: str | None = None) -> None:
    inputs = {"classifier": "c" * 64, "data": "d" * 64, "defense": defense * 64, "outcomes": f"{kind}{attack}"}
    runs.record(own, kind, {"accuracy": rate(9, 10)}, attack, provenance={"inputs": inputs})


def test_accuracy_and_attack_of_two_trainings_of_one_arm_and_seed_are_refused(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    trained(runs, OWN, "accuracy", "a")
    trained(runs, OWN, "attack", "b", "gcg")
    accuracy, attack = runs.paths
    assert refusal(runs) == (
        "records of imdb pythia_1.4b lat_reft seed0 were made from two versions of its defense: "
        f"{accuracy} (aaaaaaaa…) and {attack} (bbbbbbbb…); rerun the older one"
    )


def test_seeds_and_arms_are_trainings_of_their_own(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    for own, defense in ((OWN, "a"), (cell("lat_reft", seed=1), "b"), (cell("lat_reft", arm="lat_reft__rank_4"), "c")):
        trained(runs, own, "accuracy", defense)
        trained(runs, own, "attack", defense, "gcg")
        runs.record(own, "cost", {}, provenance={"inputs": {"record": "e" * 64}})
    assert len(read_records(runs.paths)) == 9


# --- who refuses ---


@pytest.mark.parametrize("script", ["make_table", "collect_records"])
def test_a_rule_refuses_in_one_line_and_writes_nothing(
    script: str, runs: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = path_of(runs, "attack_gcg.json")
    edit(path, lambda record: record["metrics"]["asr"].update(value=0.34))
    out = tmp_path / "out"
    job = SimpleNamespace(
        input=SimpleNamespace(records=[str(path) for path in runs.paths]),
        output=SimpleNamespace(**{ending: str(out / f"t.{ending}") for ending in ("csv", "md", "tex")}),
        params=SimpleNamespace(
            target="main_imdb", builder="main_imdb", title="", scale="small", scale_title="", cells=[OWN], titles={}
        ),
        log=[str(tmp_path / "log")],
    )
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "src" / f"{script}.py"), {"snakemake": job})
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}: asr is 0.34") and said.count("\n") == 1
    assert not out.exists()


# --- what is published ---


@pytest.mark.parametrize("evidence", sorted(ROOT.glob("published/*/records.jsonl")), ids=lambda path: path.parent.name)
def test_committed_records_do_not_contradict_themselves(evidence: Path, tmp_path: Path) -> None:
    paths = []
    for line in evidence.read_text(encoding="utf-8").splitlines():
        content = json.loads(line)
        paths.append(tmp_path / content["path"])
        write_json(paths[-1], content["record"])
    assert len(read_records(paths)) == len(paths)
