"""The benchmarks run, tiny, on a CPU: their columns, their engines, and that rows of two devices are not compared."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
STEP = ["device", "torch", "model", "method", "engine", "surrogate", "batch", "tokens", "window", "compiled",
        "deterministic", "ms_min", "ms_median", "ms_max", "tflop", "peak_gib"]  # fmt: skip
ATTACK = ["device", "torch", "model", "attack", "compiled", "engine", "content_tokens", "suffix_tokens", "candidates",
          "ms_min", "ms_median", "ms_max", "peak_gib"]  # fmt: skip


def run(script: str, *arguments: object) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_step_costs_of_both_engines_and_their_figure(tmp_path):
    out = tmp_path / "step_cost.csv"
    run(
        "step_cost.py",
        "--models",
        "tiny-llama",
        "--batch",
        2,
        "--tokens",
        24,
        "--window",
        6,
        "--repeats",
        1,
        "--out",
        out,
    )
    rows = pd.read_csv(out)
    assert list(rows.columns) == STEP
    pairs = set(zip(rows["method"], rows["engine"], rows["surrogate"], strict=True))
    assert {("lat_reft", e, s) for e in ("reference", "reuse") for s in ("none", "exact", "window")} <= pairs
    assert {("lat", "reference", "none"), ("lat", "reuse", "none"), ("cat", "reference", "none")} <= pairs
    assert set(rows[rows["method"] == "cat"]["window"]) == {24}  # all tokens change
    assert set(rows[rows["method"] != "cat"]["window"]) == {6}
    steps = rows[(rows["method"] == "lat_reft") & (rows["surrogate"] == "none")].set_index("engine")["tflop"]
    assert steps["reuse"] < 0.6 * steps["reference"]
    run("attack_cost.py", "--models", "tiny-llama", "--whole", "tiny-llama", "--content", 30, "--candidates", 6,
        "--examples", 2, "--repeats", 1, "--out", tmp_path / "attack_cost.csv")  # fmt: skip
    run("report.py", "--folder", tmp_path)
    assert (tmp_path / "step_cost.png").stat().st_size > 0
    page = " ".join((tmp_path / "README.md").read_text().split())
    slow, fast = (steps_of(rows, engine, "none")["ms_median"] for engine in ("reference", "reuse"))
    assert f"| tiny-llama | lat_reft | none | 2 | no | {slow:.0f} | {fast:.0f} | {slow / fast:.1f} (" in page
    assert "| tiny-llama | gcg_2_examples_8_in_flight | no | – |" in page
    assert "price of determinism" not in page
    fewer = 1 - steps_of(rows, "reuse", "none")["tflop"] / rows[(rows["method"] == "lat")].iloc[0]["tflop"]
    assert f"| −{fewer:.1%} |" in page
    assert ("lat_reft", "reuse_eager", "none") in pairs and "reuse eager, ms" in page
    eager = steps_of(rows, "reuse_eager", "none")
    assert eager["tflop"] == pytest.approx(steps_of(rows, "reuse", "none")["tflop"])
    reused = rows[(rows["method"] == "lat") & (rows["engine"] == "reuse")].iloc[0]["tflop"]
    assert f"| −{1 - steps_of(rows, 'reuse', 'none')['tflop'] / reused:.1%} |" in page
    assert "nan" not in page and "captured" not in page
    run("step_cost.py", "--models", "tiny-llama", "--batch", 2, "--tokens", 24, "--window", 6, "--repeats", 1, "--free",
        "--methods", "lat_reft", "lat", "--out", out)  # fmt: skip
    more = pd.read_csv(out)
    both = {method: set(more[more["method"] == method]["deterministic"]) for method in ("lat_reft", "lat")}
    assert both == {"lat_reft": {True, False}, "lat": {True}}
    compiled = more[(more["engine"] == "reuse") & more["deterministic"]].assign(compiled=True)
    pd.concat([more, compiled]).to_csv(out, index=False)
    run("report.py", "--folder", tmp_path)
    page = " ".join((tmp_path / "README.md").read_text().split())
    assert "price of determinism" in page
    assert "| tiny-llama | lat_reft | none | 2 | no |" in page and "| tiny-llama | lat_reft | none | 2 | yes |" in page


def steps_of(rows: pd.DataFrame, engine: str, surrogate: str) -> pd.Series:
    chosen = rows[(rows["method"] == "lat_reft") & (rows["surrogate"] == surrogate) & (rows["engine"] == engine)]
    return chosen.iloc[0]


def test_the_published_page_is_that_of_the_published_files():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    from report import page

    folder = ROOT / "published" / "bench"
    files = [pd.read_csv(folder / name) for name in ("step_cost.csv", "step_limit.csv", "attack_cost.csv")]
    notes = folder / "notes.md"
    assert (folder / "README.md").read_text() == page(*files, notes.read_text() if notes.is_file() else "")


def test_rows_measured_anew_replace_their_old_ones(tmp_path):
    out = tmp_path / "attack_cost.csv"
    wanted = ["--models", "tiny-neox", "--whole", "tiny-neox", "--content", 30, "--candidates", 6, "--examples", 2]
    for _ in range(2):
        run("attack_cost.py", *wanted, "--repeats", 1, "--out", out)
    rows = pd.read_csv(out)
    assert list(rows.columns) == ATTACK
    assert sorted(zip(rows["attack"], rows["engine"], strict=True)) == [
        ("candidates", "reference"), ("candidates", "reuse"),
        ("gcg_2_examples_1_in_flight", "reuse"), ("gcg_2_examples_8_in_flight", "reuse"),
        ("gradient", "reference"), ("gradient", "reuse"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("step_cost.py", "--surrogates", "windw"), "invalid choice: 'windw'"),
        (("step_cost.py", "--tokens", 16), "--window is 20, longer than the text; --tokens is 16"),
        (("attack_cost.py", "--whole", "Lama"), "invalid choice: 'Lama'"),
        (("report.py", "--folder", "/nowhere"), "--folder is /nowhere, which lacks /nowhere/step_cost.csv"),
    ],
)
def test_wrong_arguments_are_named(command, said):
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / command[0]), *map(str, command[1:])],
        capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_rows_of_two_devices_are_not_drawn_together(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from report import page, rows_of

    row = {
        "method": "lat_reft",
        "surrogate": "none",
        "model": "m",
        "batch": 8,
        "deterministic": True,
        "compiled": False,
    }
    costs = pd.DataFrame([row | {"engine": "reference", "device": "one"}, row | {"engine": "reuse", "device": "two"}])
    with pytest.raises(ValueError, match="several devices"):
        rows_of(costs, pd.DataFrame([{"model": "m", "batch": 8, "limit_ms": 1.0}]))
    with pytest.raises(ValueError, match="several devices"):
        page(costs[:1], costs[:1], costs[1:])


def test_the_limit_is_the_prefixs_arithmetic_and_the_weights_read_for_each_window_pass(monkeypatch):
    """Llama-3.1-8B: 6.98e9 parameters in 32 blocks, 28 of them above the attack layer, 8 inner passes and an outer one."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from step_cost import limit_ms

    arithmetic = 2 * 6.98e9 * 8 * 512 / 1e15
    reading = 2 * (8 + 1) * 2 * 6.98e9 * 28 / 32 / 1e12
    assert limit_ms("Llama-3.1-8B", 8, 512, 1e15, 1e12) == pytest.approx(1e3 * (arithmetic + reading), rel=2e-3)


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        ([False, False], "captured"),
        ([True, True], "captured and compiled"),
        ([True, False], "captured and compiled (b: captured only)"),
    ],
)
def test_the_figure_says_which_models_passes_were_compiled(monkeypatch, compiled, said):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from report import how_run

    rows = pd.DataFrame({"device": "a GPU", "model": ["a", "b"], "engine": "reuse", "compiled": compiled})
    assert how_run(rows.assign(device="CPU")) == "eager, too"
    assert how_run(pd.concat([rows, rows.assign(engine="reference", compiled=False)])) == said
