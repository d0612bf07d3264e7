"""Splits: disjoint, drawn by the seed alone, and clear errors when there is too little."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from latreft.data.sources import text_id
from latreft.data.splits import carve_validation, make_splits, shuffled
from latreft.settings import SettingsError


@pytest.fixture
def rows() -> pd.DataFrame:
    frame = pd.DataFrame({"split": ["train"] * 60 + ["validation"] * 20, "label": [0, 1] * 40})
    frame["text"] = [f"text {index}" for index in range(80)]
    frame["tokens"] = 2
    frame.insert(0, "id", [text_id(text) for text in frame["text"]])
    return frame


def test_splits_are_disjoint_and_of_the_wanted_sizes(rows: pd.DataFrame, make_settings: Any) -> None:
    splits = make_splits("d", rows, make_settings(ft_train=40, attack=8, tuning=5))
    assert {name: len(part) for name, part in splits.items()} == {
        "ft_train": 40, "attack": 8, "tuning": 5, "validation": 20,
    }  # fmt: skip
    ids = [set(part["id"]) for part in splits.values()]
    assert len(set.union(*ids)) == sum(len(part) for part in ids)
    assert set(splits["validation"]["id"]) == set(rows.loc[rows["split"] == "validation", "id"])


def test_the_order_of_the_input_does_not_matter(rows: pd.DataFrame, make_settings: Any) -> None:
    settings = make_settings(tuning=5, validation=7)
    expected = make_splits("d", rows, settings)
    for seed in range(3):
        again = make_splits("d", rows.sample(frac=1, random_state=seed), settings)
        for name, part in expected.items():
            pd.testing.assert_frame_equal(part, again[name])


def test_rows_sorted_by_label_are_mixed(rows: pd.DataFrame, make_settings: Any) -> None:
    splits = make_splits("d", rows.sort_values("label"), make_settings())
    assert 0.3 < splits["ft_train"]["label"].mean() < 0.7


def test_another_seed_draws_other_rows(rows: pd.DataFrame, make_settings: Any) -> None:
    one, other = (make_splits("d", rows, make_settings(seed=seed))["attack"]["id"] for seed in (42, 43))
    assert set(one) != set(other)


def test_attacked_texts_stay_when_other_splits_grow(rows: pd.DataFrame, make_settings: Any) -> None:
    small = make_splits("d", rows, make_settings(ft_train=20, attack=8))
    large = make_splits("d", rows, make_settings(ft_train=40, attack=8, tuning=10))
    more = make_splits("d", rows, make_settings(ft_train=20, attack=12))
    assert small["attack"]["id"].tolist() == large["attack"]["id"].tolist() == more["attack"]["id"].tolist()[:8]
    assert small["ft_train"]["id"].tolist() == large["ft_train"]["id"].tolist()[:20]


def test_the_shuffle_is_the_same_on_every_machine() -> None:
    frame = pd.DataFrame({"id": [f"{index}" for index in range(6)]})
    assert shuffled(frame, 42, "train")["id"].tolist() == ["2", "5", "0", "3", "1", "4"]


def test_validation_keeps_the_first_of_its_own_order(rows: pd.DataFrame, make_settings: Any) -> None:
    all_rows = make_splits("d", rows, make_settings())["validation"]
    first = make_splits("d", rows, make_settings(validation=6))["validation"]
    assert first["id"].tolist() == all_rows["id"].tolist()[:6]


def test_a_share_is_set_aside_where_there_is_no_validation(rows: pd.DataFrame) -> None:
    carved = carve_validation(rows.assign(split="train"), 0.25, seed=42)
    assert carved["split"].value_counts().to_dict() == {"train": 60, "validation": 20}
    again = carve_validation(rows.assign(split="train").iloc[::-1], 0.25, seed=42)
    pd.testing.assert_frame_equal(carved, again)


def test_too_few_training_rows_is_one_error_with_counts_and_remedy(rows: pd.DataFrame, make_settings: Any) -> None:
    with pytest.raises(
        SettingsError,
        match=r"data set 'mine': ft_train 50 \+ attack 9 \+ tuning 2 = 61 rows wanted, 60 .* at most 49",
    ):
        make_splits("mine", rows, make_settings(ft_train=50, attack=9, tuning=2))


def test_too_few_validation_rows_is_one_error(rows: pd.DataFrame, make_settings: Any) -> None:
    with pytest.raises(SettingsError, match=r"'mine': validation 21 rows wanted, 20 are left"):
        make_splits("mine", rows, make_settings(validation=21))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_missing_class_is_one_error_with_counts_and_remedy(
    rows: pd.DataFrame, make_settings: Any, split: str
) -> None:
    one_class = rows[(rows["split"] != split) | (rows["label"] == 0)]
    with pytest.raises(
        SettingsError, match=rf"'mine': filtered {split}\w* rows have no 'yes' .*'yes': 0.* widen length"
    ):
        make_splits("mine", one_class, make_settings(ft_train=20, attack=5))


def test_a_split_drawn_with_one_class_is_an_error(rows: pd.DataFrame, make_settings: Any) -> None:
    with pytest.raises(SettingsError, match=r"split 'validation' have no .* ask for more rows"):
        make_splits("mine", rows, make_settings(validation=1))
