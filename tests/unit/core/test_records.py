"""Run records: complete, checked, and equal where two runs are equal."""

from __future__ import annotations

import json
import re

import pytest
from pydantic import ValidationError

from latreft.files import write_json
from latreft.records import (
    LONG_COLUMNS,
    SCHEMA_VERSION,
    Metric,
    ModelInfo,
    RunRecord,
    cost_metrics,
    device_name,
    jobs_at_a_time,
    long_form,
    model_info,
    rate,
    read_record,
    write_record,
)

MODEL = ModelInfo(name="tiny", family="llama", revision="r", parameters=10)


def record(**changes) -> RunRecord:
    values = {
        "kind": "attack", "scale": "smoke", "dataset": "imdb", "model": MODEL, "method": "lat", "arm": "lat", "seed": 0,
        "attack": "gcg", "settings": {"epsilon": 1.0}, "metrics": {"asr": rate(3, 10)},
        "cost": {"seconds": 1.5, "device": "CPU", "peak_memory_bytes": 5, "peak_memory_measure": "m", "flops_total": 7},
        "provenance": {"code": "abc"},
    }  # fmt: skip
    return RunRecord(**values | changes)


def test_comes_back_as_written(tmp_path):
    write_record(record(), tmp_path / "r.json")
    assert read_record(tmp_path / "r.json") == record()
    assert json.loads((tmp_path / "r.json").read_text())["schema_version"] == SCHEMA_VERSION


@pytest.mark.parametrize(("successes", "n"), [(0, 10), (3, 10), (10, 10), (1, 1)])
def test_a_rate_carries_n_and_an_interval_that_holds_it(successes, n):
    metric = rate(successes, n)
    assert metric.value == successes / n
    assert metric.n == n
    assert 0 <= metric.ci_low <= metric.value + 1e-12
    assert metric.value - 1e-12 <= metric.ci_high <= 1


def test_the_interval_is_wilsons():
    metric = rate(8, 10)
    assert (metric.ci_low, metric.ci_high) == pytest.approx((0.4901625, 0.9433178), abs=1e-6)


def test_a_rate_over_nothing_or_without_its_interval_is_an_error():
    with pytest.raises(ValueError, match="a rate over no examples"):
        rate(0, 0)
    with pytest.raises(ValidationError, match="a rate needs n, ci_low and ci_high"):
        Metric(value=0.5, unit="rate", n=10)
    with pytest.raises(ValidationError, match="does not hold the rate"):
        Metric(value=0.5, unit="rate", n=10, ci_low=0.6, ci_high=0.9)
    with pytest.raises(ValidationError):
        Metric(value=0.5, unit="nats", stray=1)


def test_the_digest_ignores_time_memory_device_and_provenance_and_nothing_else():
    base = record().digest()
    volatile = {"seconds": 9.0, "device": "GPU", "peak_memory_bytes": 6, "peak_memory_measure": "n", "flops_total": 7}
    assert record(cost=volatile).digest() == base
    assert record(provenance={"code": "other"}).digest() == base
    changes = [
        {"cost": volatile | {"flops_total": 8}}, {"seed": 1}, {"scale": "small"}, {"settings": {"epsilon": 2.0}},
        {"metrics": {"asr": rate(4, 10)}}, {"attack": None}, {"model": MODEL.model_copy(update={"revision": "s"})},
    ]  # fmt: skip
    digests = {record(**change).digest() for change in changes}
    assert len(digests | {base}) == len(changes) + 1


@pytest.mark.parametrize("jobs", [1, 4, 12])
def test_a_device_says_how_many_jobs_shared_it(jobs):
    assert jobs_at_a_time(device_name("NVIDIA H200", jobs)) == jobs
    assert device_name("a card", 1) == "a card" and jobs_at_a_time("CPU, 2 thread(s)") == 1


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"schema_version": 0}, "schema_version is 0, this code reads 1; rerun the run"),
        ({"kind": "guess"}, "is not a run record: kind: "),
        ({"stray": 1}, "is not a run record: stray: "),
        ({"seed": "x"}, "is not a run record: seed: "),
        ({"metrics": {"asr": {"value": 0.1, "unit": "rate"}}}, "metrics.asr: .*a rate needs n"),
    ],
)
def test_a_broken_record_names_file_and_field(fault, message, tmp_path):
    path = tmp_path / "r.json"
    write_json(path, record().model_dump(mode="json") | fault)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*{message}"):
        read_record(path)


@pytest.mark.parametrize("content", ["{", "", "[1, 2]", "3"])
def test_what_is_no_record_at_all_is_an_error_with_the_files_name(content, tmp_path):
    path = tmp_path / "r.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_record(path)


def test_a_record_lacking_a_field_names_it(tmp_path):
    values = record().model_dump(mode="json")
    del values["dataset"]
    write_json(tmp_path / "r.json", values)
    with pytest.raises(ValueError, match="dataset: Field required"):
        read_record(tmp_path / "r.json")


def test_the_long_form_is_the_same_in_any_order_and_holds_every_metric():
    other = record(seed=1, attack=None, kind="accuracy", metrics={"accuracy": rate(9, 10)})
    one, again = long_form([record(), other]), long_form([other, record()])
    assert list(one.columns) == LONG_COLUMNS
    assert one.to_csv() == again.to_csv()
    assert set(one["metric"]) == {"asr", "accuracy", "cost_flops_total"}
    assert long_form([]).empty


def test_cost_metrics_are_numbers_with_units():
    found = cost_metrics({"seconds": 1.0, "flops_x": 2, "percent_y": 3.0, "trainable_parameters": 4, "steps": 5,
                          "engine": "reference", "flag": True, "none": None})  # fmt: skip
    assert {key: metric.unit for key, metric in found.items()} == {
        "cost_flops_x": "flop", "cost_percent_y": "percent", "cost_trainable_parameters": "parameters",
        "cost_steps": "count",
    }  # fmt: skip


def test_model_info_is_read_from_a_manifest():
    manifest = {"family": "llama", "revision": "r", "parameters": 10, "files": {}, "name": "other"}
    assert model_info("tiny", manifest) == MODEL
