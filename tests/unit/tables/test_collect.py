"""Collecting records into cells, and pooling seeds."""

import math

import pytest
from statsmodels.stats.proportion import proportion_confint
from unit.tables.synthetic_records import Runs, cell, costs, write_manifest

from latreft.records import Metric, ModelInfo, long_form, rate
from latreft.tables.collect import COSTS, POOLED, TIDY, check_records, collect, pool_seeds, sizes
from latreft.tables.context import mixed_code, read_records


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


def frame_of(runs):
    return long_form(read_records(runs.paths))


def one(frame, **where):
    for key, value in where.items():
        frame = frame[frame[key] == value]
    assert len(frame) == 1, f"{len(frame)} rows for {where}"
    return frame.iloc[0]


def test_values_are_the_records_own(runs):
    own = cell("lat_reft")
    runs.write(own, asr={"gcg": 0.33}, accuracy=0.94)
    tidy = collect([own], frame_of(runs), "small")
    assert list(tidy.columns) == TIDY and not tidy["missing"].any()
    asr = one(tidy, source="gcg", metric="asr")
    assert (asr["value"], asr["n"], asr["ci_low"], asr["ci_high"]) == (0.33, 100, *_wilson(33, 100))
    assert (
        one(tidy, source="cost", metric="cost_paper_flops_per_example")["value"] == costs()["paper_flops_per_example"]
    )
    assert one(tidy, source="train", metric="final_clean")["value"] == 0.25


def _wilson(successes, n):
    return rate(successes, n).ci_low, rate(successes, n).ci_high


def test_costs_that_differ_between_equal_runs_are_no_metrics(runs):
    runs.write(cell("lat_reft"))
    metrics = set(frame_of(runs)["metric"])
    assert not metrics & {"cost_seconds", "cost_peak_memory_bytes", "cost_device"}
    assert set(COSTS) <= metrics
    units = dict(zip(frame_of(runs)["metric"], frame_of(runs)["unit"], strict=True))
    assert units["cost_paper_flops_per_example"] == "flop"
    assert units["cost_trainable_percent"] == "percent" and units["cost_surrogate_parameters"] == "parameters"


def test_a_missing_record_is_marked_and_a_missing_metric_is_not(runs):
    there, absent = cell("lat_reft"), cell("lat")
    runs.write(there, cost=costs(measured=None))
    tidy = collect([there, absent], frame_of(runs))
    gone = tidy[tidy["method"] == "lat"]
    assert gone["missing"].all() and gone["value"].isna().all()
    assert set(gone["source"]) == {"accuracy", "cost", "gcg"}
    unreported = one(tidy, method="lat_reft", metric="cost_measured_flops_per_example")
    assert math.isnan(unreported["value"]) and not unreported["missing"]


def test_no_records_at_all_is_all_missing():
    tidy = collect([cell("lat_reft")], long_form([]), "small")
    assert len(tidy) and tidy["missing"].all()


def test_two_scales_are_refused(runs, tmp_path):
    runs.write(cell("lat_reft"))
    other = Runs(tmp_path / "paper", "paper")
    other.write(cell("lat"))
    runs.paths += other.paths
    with pytest.raises(ValueError, match="different scales.*paper, small"):
        collect([cell("lat_reft")], frame_of(runs))


def test_another_scale_than_the_targets_is_refused(runs):
    runs.write(cell("lat_reft"))
    with pytest.raises(ValueError, match="scale 'small' was given to a target of scale 'paper'"):
        collect([cell("lat_reft")], frame_of(runs), "paper")


def test_two_different_records_of_one_run_are_refused_and_copies_are_not(runs, tmp_path):
    own = cell("lat_reft")
    runs.write(own, asr={"gcg": 0.3})
    copy = Runs(tmp_path / "copy")
    copy.write(own, asr={"gcg": 0.3})
    runs.paths += copy.paths
    frame = frame_of(runs)
    assert len(check_records(frame)) == len(frame) // 2
    copy.attack(own, "gcg", 0.4)
    with pytest.raises(ValueError, match="2 different records of one run: small imdb pythia_1.4b lat_reft"):
        collect([own], frame_of(runs))


def test_one_arm_may_stand_under_two_labels(runs):
    cells = [cell("lat_reft", label="20", panel="window"), cell("lat_reft", label="middle", panel="layer")]
    runs.write(cells[0], asr={"gcg": 0.26})
    pooled = pool_seeds(collect(cells, frame_of(runs)))
    assert list(pooled[pooled["metric"] == "asr"]["value"]) == [0.26, 0.26]


def test_pooling_is_the_mean_with_the_interval_of_one_seeds_n(runs):
    cells = [cell("lat_reft", seed=seed) for seed in (0, 1, 2)]
    for own, asr in zip(cells, (0.30, 0.33, 0.37), strict=True):
        runs.write(own, asr={"gcg": asr})
    pooled = pool_seeds(collect(cells, frame_of(runs)))
    assert list(pooled.columns) == POOLED
    asr = one(pooled, source="gcg", metric="asr")
    mean = (0.30 + 0.33 + 0.37) / 3
    low, high = proportion_confint(mean * 100, 100, method="wilson")
    assert asr["value"] == pytest.approx(mean) and asr["n"] == 100
    assert (asr["ci_low"], asr["ci_high"]) == pytest.approx((low, high))
    assert (asr["seeds"], asr["seeds_wanted"], asr["seed_values"]) == (3, 3, "0.3;0.33;0.37")
    cost = one(pooled, metric="cost_uniform_flops_per_example")
    assert cost["value"] == costs()["uniform_flops_per_example"] and math.isnan(cost["ci_low"])


def test_one_seed_keeps_the_records_interval(runs):
    runs.write(cell("lat_reft"), asr={"gcg": 0.0})
    asr = one(pool_seeds(collect([cell("lat_reft")], frame_of(runs))), source="gcg", metric="asr")
    assert (asr["value"], asr["ci_low"], asr["ci_high"]) == (0.0, *_wilson(0, 100)) and asr["seeds"] == 1


def test_seeds_that_are_missing_are_counted(runs):
    cells = [cell("lat_reft", seed=seed) for seed in (0, 1, 2)]
    for own in cells[:2]:
        runs.write(own, asr={"gcg": 0.2})
    asr = one(pool_seeds(collect(cells, frame_of(runs))), source="gcg", metric="asr")
    assert (asr["value"], asr["seeds"], asr["seeds_wanted"], asr["missing"]) == (0.2, 2, 3, False)


def test_seeds_on_different_numbers_of_examples_are_refused(runs):
    cells = [cell("lat_reft", seed=seed) for seed in (0, 1)]
    runs.attack(cells[0], "gcg", 0.2, n=100)
    runs.attack(cells[1], "gcg", 0.2, n=50)
    with pytest.raises(ValueError, match="different numbers of examples \\(50, 100\\)"):
        pool_seeds(collect(cells, frame_of(runs)))


def test_rates_of_a_models_own_successes_take_the_smallest_n(runs):
    cells = [cell("lat_reft", seed=seed) for seed in (0, 1)]
    for own, right in zip(cells, (97, 90), strict=True):
        runs.record(own, "attack", {"asr": rate(20, 100), "asr_of_correct": rate(20, right)}, attack="gcg")
    pooled = pool_seeds(collect(cells, frame_of(runs)))
    assert one(pooled, metric="asr_of_correct")["n"] == 90


def test_extra_metrics_of_a_record_are_kept(runs):
    own = cell("lat_reft")
    runs.record(own, "train", {"edit_norm": Metric(value=0.1, unit="value")})
    assert one(collect([own], frame_of(runs)), metric="edit_norm")["value"] == 0.1


def test_a_bare_data_set_and_model_is_a_classifier(runs):
    own = runs.classifier("imdb", "pythia_1.4b", 0.944)
    tidy = collect([own, {"dataset": "enron", "model": "pythia_1.4b"}], frame_of(runs))
    assert list(tidy["missing"]) == [False, True]


def test_records_from_two_versions_of_the_data_are_refused(runs):
    for method, version in (("lat", "a" * 64), ("lat_reft", "b" * 64)):
        runs.record(cell(method), "accuracy", {"accuracy": rate(9, 10)}, provenance={"inputs": {"data": version}})
    with pytest.raises(ValueError, match="records of imdb were made from two versions of its data"):
        read_records(runs.paths)


def test_two_code_versions_of_one_kind_are_said(runs):
    for seed, code in ((0, "aaaa"), (1, "bbbb")):
        own = cell("lat_reft", seed=seed)
        runs.record(own, "accuracy", {"accuracy": rate(9, 10)}, provenance={"code": code})
    assert runs.context("main_imdb", [own]).code_words == ["mixed code versions: accuracy lat_reft"]


def test_code_of_another_family_is_no_other_version(runs):
    """A family's module is code of its own models' jobs only, so their hashes differ."""
    for family, code in (("llama", "aaaa"), ("qwen2", "bbbb")):
        own = cell("lat_reft", model=family)
        model = ModelInfo(name=family, family=family, revision="0" * 40, parameters=1)
        runs.record(own, "accuracy", {"accuracy": rate(9, 10)}, model=model, provenance={"code": code})
    assert runs.context("main_imdb", [own]).code_words == [] and mixed_code(read_records(runs.paths)) == {}
    runs.record(cell("lat_reft", model="other"), "accuracy", {"accuracy": rate(9, 10)}, provenance={"code": "cccc"})
    assert mixed_code(read_records(runs.paths)) == {"accuracy lat_reft": 2}


def test_sizes_in_words(runs):
    own = cell("lat_reft", attacks=("random_token", "gcg"))
    runs.write(own)
    pooled = pool_seeds(collect([own], frame_of(runs)))
    words = sizes(pooled, {"gcg": "GCG", "random_token": "RandomToken"})
    assert words == "n = 22,253 (accuracy), 100 (RandomToken, GCG)"
    assert sizes(pooled[:0], {}) == "no runs yet"


def test_a_file_that_is_no_record_is_named(tmp_path):
    path = write_manifest(tmp_path / "manifest.json")
    with pytest.raises(ValueError, match="manifest.json: schema_version is None"):
        read_records([path])
