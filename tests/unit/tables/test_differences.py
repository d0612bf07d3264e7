"""The table of differences: paired on examples, true to the records, plain about what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from unit.tables.synthetic_records import Runs, cell

from latreft.paired import paired_difference
from latreft.tables import table_builder
from latreft.tables.context import Context
from latreft.tables.render import Table, csv_text

BOTH = ("random_token", "gcg")
SUCCESSES = {"none": 18, "r2d2": 12, "lat_reft": 5}
N = 20


def arms(seeds=(0,)):
    return [cell(method, seed=seed, attacks=BOTH) for method in SUCCESSES for seed in seeds]


class Attacked:
    """Records of arms, and their outcomes where the workflow puts them."""

    def __init__(self, folder: Path):
        self.runs, self.folder, self.outcomes = Runs(folder / "records"), folder, []

    def write(self, own, shift=0):
        count = SUCCESSES[own["method"]]
        for attack in own["attacks"]:
            place = self.folder / own["dataset"] / own["model"] / own["arm"] / f"seed{own['seed']}"
            success = np.roll(np.arange(N) < count, shift)
            path = place / f"attack_{attack}.parquet"
            place.mkdir(parents=True, exist_ok=True)
            pd.DataFrame({"id": [f"e{i}" for i in range(N)], "success": success}).to_parquet(path)
            self.outcomes.append(path)
            self.runs.attack(own, attack, count / N, N)

    def context(self, cells) -> Context:
        return self.runs.context("differences", cells, outcomes=self.outcomes)

    def build(self, cells) -> Table:
        return table_builder("differences")(self.context(cells))


def test_each_arm_is_compared_with_lat_reft_on_the_same_examples(tmp_path):
    attacked, cells = Attacked(tmp_path), arms()
    for own in cells:
        attacked.write(own)
    frame = attacked.build(cells).frame
    assert list(zip(frame["arm"], frame["attack"], strict=True)) == [(a, b) for a in ("none", "r2d2") for b in BOTH]
    row = frame[(frame["arm"] == "r2d2") & (frame["attack"] == "gcg")].iloc[0]
    assert (row["difference"], row["n"], row["seeds"]) == (pytest.approx(7 / N), N, 1)
    assert (row["value"], row["value_reference"]) == (12 / N, 5 / N)
    assert float(row["mcnemar_p"]) == pytest.approx(2 / 2**7) and row["ci_low"] > 0


def test_seeds_are_averaged_within_examples_and_tested_apart(tmp_path):
    attacked, cells = Attacked(tmp_path), arms((0, 1))
    for own in cells:
        attacked.write(own, shift=own["seed"])
    frame = attacked.build(cells).frame
    row = frame[(frame["arm"] == "none") & (frame["attack"] == "gcg")].iloc[0]

    def outcomes(method):
        paths = [tmp_path / "imdb" / "pythia_1.4b" / method / f"seed{seed}" / "attack_gcg.parquet" for seed in (0, 1)]
        return pd.concat(
            [
                pd.read_parquet(path).rename(columns={"success": "outcome"}).assign(seed=seed)
                for seed, path in enumerate(paths)
            ]
        )

    found = paired_difference(outcomes("none"), outcomes("lat_reft"))
    assert (row["difference"], row["ci_low"], row["ci_high"]) == (found.estimate, found.low, found.high)
    assert row["mcnemar_p"] == f"{found.p[0]!r};{found.p[1]!r}" and row["n"] == N


def test_display_says_what_is_missing_and_which_seeds_are_there(tmp_path):
    attacked, cells = Attacked(tmp_path), arms((0, 1))
    for own in cells:
        if own["method"] != "none" and not (own["method"] == "r2d2" and own["seed"] == 1):
            attacked.write(own)
    display = attacked.build(cells).display.set_index("Arm")
    assert display.loc["No defense", "GCG, difference"] == "missing" and display.loc["No defense", "GCG, p"] == "–"
    assert display.loc["R2D2", "GCG, difference"].endswith("(1 of 2 seeds)")


def test_equal_outcomes_give_equal_bytes_in_any_order(tmp_path):
    attacked, cells = Attacked(tmp_path), arms((0, 1))
    for own in cells:
        attacked.write(own, shift=own["seed"])
    once = csv_text(attacked.build(cells))
    attacked.outcomes.reverse()
    assert csv_text(attacked.build(cells)) == once


def test_outcomes_that_are_not_their_record_s_are_refused(tmp_path):
    attacked, cells = Attacked(tmp_path), arms()
    for own in cells:
        attacked.write(own)
    path = attacked.outcomes[0]
    frame = pd.read_parquet(path)
    frame.loc[0, "success"] = False
    frame.to_parquet(path)
    with pytest.raises(ValueError, match="none/seed0, random_token: the record's asr is 0.9, its outcomes give 0.85"):
        attacked.build(cells)


def test_a_group_without_lat_reft_is_an_error_that_names_the_arm(tmp_path):
    cells = [own for own in arms() if own["method"] != "lat_reft"]
    with pytest.raises(ValueError, match="none .imdb, pythia_1.4b. has no arm lat_reft"):
        Attacked(tmp_path).build(cells)


def test_caption_names_scale_examples_and_seeds(tmp_path):
    attacked, cells = Attacked(tmp_path), arms((0, 1))
    for own in cells:
        attacked.write(own)
    caption = attacked.build(cells).caption
    assert "Scale: small" in caption and "n = 20 examples, each with 2 seeds" in caption
