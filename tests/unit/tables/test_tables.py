"""Each table, from records to its three files."""

import io
import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from unit.tables import synthetic_records as synthetic
from unit.tables.synthetic_records import MODELS, TITLES, Runs, cell

from latreft.records import read_record
from latreft.tables import SHARED, table_builder
from latreft.tables.layout import significant
from latreft.tables.render import csv_text, latex_text, markdown_text

BOTH = ("random_token", "gcg")
SCRIPT = Path(__file__).parents[3] / "src" / "make_table.py"


def build(runs, target, cells, **further):
    return table_builder(target)(runs.context(target, cells, **further))


def others(runs):
    cells = [
        cell(method, dataset=dataset, attacks=BOTH)
        for dataset in ("enron", "password_match")
        for method in ("none", "r2d2", "lat", "lat_reft")
    ]
    for own in cells:
        runs.write(own)
    return cells


def by_dataset(runs):
    cells = [
        cell("lat_reft", label=ratio, dataset=dataset, arm=f"lat_reft__pruning_ratio_{ratio}")
        for dataset in ("imdb", "enron")
        for ratio in ("0.0", "0.25", "0.5")
    ]
    for own in cells:
        runs.write(own)
    return cells


def prefix(runs):
    cells = [cell(method, attacks=("gcg", "prefix_gcg")) for method in ("none", "lat_reft")]
    for own in cells:
        runs.write(own)
    return cells


ATTACK_TABLES = {
    "main_imdb": synthetic.main_imdb, "other_datasets": others, "pruning_by_dataset": by_dataset, "prefix_attack": prefix,
}  # fmt: skip


@pytest.mark.parametrize("target", ATTACK_TABLES)
def test_csv_holds_the_records_numbers(target, tmp_path):
    runs = Runs(tmp_path)
    table = build(runs, target, ATTACK_TABLES[target](runs))
    frame = pd.read_csv(io.StringIO(csv_text(table)))
    for path in runs.paths:
        record = read_record(path)
        source = record.attack or record.kind
        rows = frame[
            (frame["dataset"] == record.dataset) & (frame["model"] == record.model.name) & (frame["arm"] == record.arm)
        ]
        for name, metric in record.metrics.items():
            row = rows[(rows["source"] == source) & (rows["metric"] == name)].iloc[0]
            assert row["value"] == metric.value
            if metric.n is not None:
                assert (row["n"], row["ci_low"], row["ci_high"]) == (metric.n, metric.ci_low, metric.ci_high)


@pytest.mark.parametrize("target", ATTACK_TABLES)
def test_the_papers_numbers_stand_at_the_paper_scale_only(target, tmp_path):
    small, paper = Runs(tmp_path / "s"), Runs(tmp_path / "p", "paper")
    ours = build(small, target, ATTACK_TABLES[target](small))
    theirs = build(paper, target, ATTACK_TABLES[target](paper))
    assert "paper:" not in markdown_text(ours) and "paper_value" not in csv_text(ours)
    columns = [name for name in theirs.display.columns if name.startswith("paper: ")]
    assert columns and theirs.frame["paper_value"].notna().any()
    assert "Scale: paper" in theirs.caption and "Scale: small" in ours.caption
    assert "n = 22,253 (accuracy), 100" in ours.caption


def test_the_papers_main_table_is_found_whatever_the_spelling(tmp_path):
    runs = Runs(tmp_path, "paper")
    display = build(runs, "main_imdb", synthetic.main_imdb(runs)).display
    ours = display[(display["Model"] == "Qwen2.5-3B") & (display["Method"] == "LAT-ReFT")].iloc[0]
    assert (ours["paper: GCG ASR"], ours["paper: Trainable %"]) == ("0.26", "0.0085")
    assert ours["paper: TFLOP, paper's formulas"] == "39.2"
    frame = build(runs, "main_imdb", synthetic.main_imdb(runs)).frame
    cost = frame[(frame["model"] == "pythia_1.4b") & (frame["metric"] == "cost_paper_flops_per_example")]
    assert list(cost["paper_value"].dropna()) == [161.7e12, 39.0e12, 30.9e12, 19.6e12]


def test_a_missing_arm_says_so_and_an_unreported_value_does_not(tmp_path):
    runs = Runs(tmp_path)
    cells = synthetic.main_imdb(runs, models=("pythia_1.4b",), skip=[("pythia_1.4b", "cat")])
    table = build(runs, "main_imdb", cells)
    rows = table.display.set_index("Method")
    assert set(rows.loc["CAT"].iloc[1:]) == {"missing"}
    assert rows.loc["No defense", "TFLOP, measured"] == "–"
    assert table.supplement is not None and "missing" in markdown_text(table) and "missing" in latex_text(table)
    assert table.frame[table.frame["arm"] == "cat"]["missing"].all()


def test_the_main_table_says_which_engine_its_measured_operations_are_of(tmp_path):
    runs = Runs(tmp_path)
    own = cell("lat_reft", attacks=("gcg",))
    runs.write(own, kinds=("accuracy", "cost", "attack"))
    assert "while it ran on the data set's own texts." in markdown_text(build(runs, "main_imdb", [own]))
    runs.record(own, "train", {}, provenance={"runtime": {"engine": "reuse"}})
    assert "while it ran on the data set's own texts, by the engine reuse." in markdown_text(
        build(runs, "main_imdb", [own])
    )


def test_a_rate_is_written_with_its_interval_and_missing_seeds(tmp_path):
    runs = Runs(tmp_path)
    cells = [cell("lat_reft", seed=seed, attacks=("gcg",)) for seed in (0, 1, 2)]
    for own in cells[:2]:
        runs.write(own, asr={"gcg": 0.33}, accuracy=0.945)
    row = build(runs, "main_imdb", cells).display.iloc[0]
    assert row["GCG ASR"] == "0.330 [0.25, 0.43] (2 of 3 seeds)"
    assert row["Accuracy"] == "0.945 [0.942, 0.948] (2 of 3 seeds)"


def test_pruning_is_shown_in_percent(tmp_path):
    runs = Runs(tmp_path)
    assert list(build(runs, "pruning_by_dataset", by_dataset(runs)).display["Pruned %"]) == ["0", "25", "50"] * 2


def test_classifiers_are_data_sets_by_models(tmp_path):
    runs = Runs(tmp_path, "paper")
    for dataset in TITLES["datasets"]:
        for model in MODELS:
            if (dataset, model) != ("enron", MODELS[1]):
                runs.classifier(dataset, model)
    table = build(runs, "finetuned_accuracy", [])
    display = table.display.set_index("Data set")
    assert display.loc["EnronSpam", "Qwen2.5-3B"] == "missing"
    assert display.loc["IMDB", "Pythia-1.4B"] == "0.944 [0.941, 0.947]"
    assert display.loc["IMDB", "paper: Llama-3.1-8B"] == "0.971"
    assert table.frame["paper_value"].iloc[0] == 0.944


def test_dataset_stats_come_from_manifests(tmp_path):
    runs = Runs(tmp_path)
    manifests = [
        synthetic.write_manifest(tmp_path / f"{name}.json", name, carved=name == "enron") for name in ("imdb", "enron")
    ]
    table = build(runs, "dataset_stats", [], manifests=manifests)
    assert list(table.frame["train_filtered"]) == [22465, 22465]
    assert list(table.frame["validation"]) == [22253, 22253]
    enron = table.display.iloc[1]
    assert (enron["Data set"], enron["Val. raw"], enron["Tuning"], enron["Evaluated"]) == (
        "EnronSpam",
        "–",
        "–",
        "22,253",
    )
    paper = build(Runs(tmp_path, "paper"), "dataset_stats", [], manifests=manifests)
    assert list(paper.display["paper: Train raw"]) == ["24,365", "29,290"]


def test_a_file_that_is_no_manifest_is_named(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match="manifest.json is not a data manifest: name, origin, splits missing"):
        build(Runs(tmp_path), "dataset_stats", [], manifests=[path])


def test_hyperparameters_are_the_records_settings(tmp_path):
    runs = Runs(tmp_path)
    lat = [cell("lat", dataset=dataset) for dataset in ("imdb", "enron")]
    for own, epsilon in zip(lat, (0.5, 0.2), strict=True):
        runs.write(own, settings={"epsilon": epsilon, "steps": 8, "step_size": None, "nested": {"on": True}})
    runs.write(cell("lat", arm="lat__steps_2"), settings={"epsilon": 0.5, "steps": 2})
    gone = cell("lat_reft")
    table = build(runs, "hyperparameters", [*lat, gone])
    display = table.display.set_index(["Method", "Setting"])["Pythia-1.4B"]
    assert display["LAT", "epsilon"] == "0.2 (EnronSpam); 0.5 (IMDB)"
    assert display["LAT", "steps"] == "8" and display["LAT", "step_size"] == "none"
    assert display["LAT", "nested.on"] == "yes" and display["LAT-ReFT", "–"] == "missing"
    steps = table.frame[table.frame["setting"] == "steps"]
    assert dict(zip(steps["arm"], steps["value"], strict=True)) == {"lat": "8", "lat__steps_2": "2"}
    assert all(json.loads(value) is not False for value in table.frame[table.frame["arm"] == "lat"]["value"])


def test_seeds_with_different_settings_are_refused(tmp_path):
    runs = Runs(tmp_path)
    for seed in (0, 1):
        runs.write(cell("lat", seed=seed), settings={"epsilon": 0.5 + seed})
    with pytest.raises(ValueError, match="lat lat epsilon: seeds were trained with 0.5 and 1.5"):
        build(runs, "hyperparameters", [])


def test_hyperparameters_of_two_scales_are_refused(tmp_path):
    runs = Runs(tmp_path, "smoke")
    runs.write(cell("lat"))
    with pytest.raises(ValueError, match="scale 'smoke' was given to a target of scale 'paper'"):
        table_builder("hyperparameters")(runs.context("hyperparameters", [], scale="paper"))


def test_an_unknown_table_lists_the_known_ones():
    with pytest.raises(ValueError, match="no table is called 'main'.*main_imdb"):
        table_builder("main")
    assert not SHARED & {"main_imdb"}


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (19.6, "19.60"), (3750.4, "3750"), (0.0203, "0.02030"), (2e-6, "2.000e-06")]
)
def test_four_significant_digits(value, text):
    assert significant(value) == text


def test_captions_name_the_scale_once(tmp_path):
    runs = Runs(tmp_path, "smoke")
    context = runs.context("main_imdb", [], scale_title="smoke scale: tiny models")
    assert context.scale_words == "Smoke scale: tiny models"


def own_cells(runs):
    """Cells of a table of one's own: two data sets, an arm with a label, one without a record."""
    cells = [
        cell("none"),
        cell("lat_reft", label="One token", arm="lat_reft__window_1"),
        cell("lat_reft", dataset="reviews"),
        cell("lat", dataset="reviews"),
    ]
    for own in cells[:3]:
        runs.write(own, asr={"gcg": 0.33}, accuracy=0.945)
    return cells


def test_a_table_of_ones_own_has_a_row_an_arm_with_accuracy_attacks_and_cost(tmp_path):
    runs = Runs(tmp_path, "paper")
    table = table_builder("arms")(runs.context("reviews", own_cells(runs)))
    display = table.display
    assert list(display["Arm"]) == ["No defense", "One token", "LAT-ReFT", "LAT"]
    assert list(display["Data set"]) == ["IMDB", "IMDB", "reviews", "reviews"]
    assert list(display.columns[3:6]) == ["Accuracy", "GCG ASR", "Trainable %"] and "TFLOP, measured" in display
    assert list(display["GCG ASR"]) == ["0.330 [0.25, 0.43]"] * 3 + ["missing"]
    assert display["TFLOP, measured"].iloc[1] == "16.60"
    assert table.label == "tab:paper:reviews" and table.supplement is not None
    assert "paper_value" not in table.frame and not any(name.startswith("paper:") for name in display)


def test_the_script_builds_a_table_by_its_builder_whatever_the_target_is_called(tmp_path):
    runs = Runs(tmp_path / "records")
    job = script_job(tmp_path, runs, own_cells(runs), "own")
    job.params.target, job.params.builder, job.params.title = "reviews", "arms", "My reviews"
    runpy.run_path(str(SCRIPT), {"snakemake": job})
    written = (tmp_path / "own" / "table.md").read_text()
    assert "My reviews. Scale: small" in written and "One token" in written


def script_job(folder, runs, cells, out):
    """What Snakemake hands to the script."""
    return SimpleNamespace(
        input=SimpleNamespace(records=[str(path) for path in runs.paths]),
        output=SimpleNamespace(**{ending: str(folder / out / f"table.{ending}") for ending in ("csv", "md", "tex")}),
        log=[str(folder / "logs" / "table.log")],
        params=SimpleNamespace(
            target="main_imdb",
            builder="main_imdb",
            title="Main result",
            scale=runs.scale,
            scale_title="One GPU",
            cells=cells,
            titles=TITLES,
        ),
    )


def test_the_script_writes_equal_bytes_twice_and_in_any_order(tmp_path):
    runs = Runs(tmp_path / "records")
    cells = synthetic.main_imdb(runs, models=("pythia_1.4b",))
    for out in ("a", "b"):
        runpy.run_path(str(SCRIPT), {"snakemake": script_job(tmp_path, runs, cells, out)})
        runs.paths.reverse()
    for ending in ("csv", "md", "tex"):
        assert (tmp_path / "a" / f"table.{ending}").read_bytes() == (tmp_path / "b" / f"table.{ending}").read_bytes()


def test_the_script_says_what_is_wrong_in_one_line(tmp_path, capsys):
    runs = Runs(tmp_path / "records")
    cells = synthetic.main_imdb(runs, models=("pythia_1.4b",))
    job = script_job(tmp_path, runs, cells, "a")
    job.params.scale = "paper"
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), {"snakemake": job})
    said = capsys.readouterr().err
    assert said.startswith("error: a record of scale 'small'") and Path(job.log[0]).read_text() == said
    assert not (tmp_path / "a").exists()


def test_no_model_library_is_imported():
    import subprocess

    code = (
        "import sys, latreft.tables, latreft.tables.main_imdb, latreft.plots, latreft.plots.heatmaps, safetensors.numpy;"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=SCRIPT.parent).returncode == 0
