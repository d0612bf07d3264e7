"""Cleaning: what is dropped, for which reason, and that the counts add up."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from latreft.data.cleaning import DROP_REASONS, clean, near_copies
from latreft.data.lengths import LengthCounter
from latreft.data.sources import text_id

COUNT = LengthCounter("whitespace").count


def table(*rows: tuple[str, Any, int]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=["split", "text", "label"])
    frame["text"] = frame["text"].astype(object).where(frame["text"].notna(), None)
    frame.insert(0, "id", [text_id(text) for text in frame["text"]])
    return frame


def run(*rows: tuple[str, Any, int], most: int = 100) -> tuple[pd.DataFrame, dict[str, Any]]:
    return clean(table(*rows), COUNT, 2, most)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "missing"),
        ("", "empty"),
        (" \n\t", "empty"),
        ("a b\0 c", "nul"),
        ("word", "too_short"),
        ("word " * 10_000, "too_long"),
    ],
)
def test_unusable_texts_are_dropped_for_their_reason(text: str | None, reason: str) -> None:
    kept, counts = run(("train", text, 0), ("train", "good text", 0), ("validation", "other text", 1))
    assert kept["text"].tolist() == ["good text", "other text"]
    assert {name: rows for name, rows in counts["train"]["dropped"].items() if rows} == {reason: 1}


def test_the_length_bounds_are_included() -> None:
    kept, _ = run(("train", "a b", 0), ("train", "a b c", 0), ("train", "a b c d", 1), most=3)
    assert kept["tokens"].tolist() == [2, 3]


def test_one_copy_stays_in_each_split() -> None:
    kept, counts = run(("train", "a b", 0), ("train", "a b", 0), ("train", "a b", 0), ("validation", "c d", 1))
    assert len(kept) == 2
    assert counts["train"]["dropped"]["copy"] == 2 and counts["train"]["distinct"] == 1


def test_a_text_in_both_splits_stays_in_validation_only() -> None:
    kept, counts = run(("train", "a b", 0), ("train", "c d", 1), ("validation", "a b", 0), ("validation", "a b", 0))
    assert kept[["split", "text"]].values.tolist() == [["train", "c d"], ["validation", "a b"]]
    assert counts["train"]["dropped"]["in_validation"] == 1
    assert counts["validation"]["dropped"]["copy"] == 1


def test_conflicting_labels_drop_every_row_of_the_text_in_both_splits() -> None:
    kept, counts = run(
        ("train", "a b", 0), ("train", "a b", 1), ("train", "a b", 1), ("train", "c d", 0),
        ("validation", "a b", 0), ("validation", "e f", 1),
    )  # fmt: skip
    assert kept["text"].tolist() == ["c d", "e f"]
    assert counts["train"]["dropped"]["conflicting_labels"] == 3
    assert counts["validation"]["dropped"]["conflicting_labels"] == 1
    assert counts["train"]["dropped"]["copy"] == 0


def test_labels_that_conflict_across_splits_only_are_found_too() -> None:
    kept, _ = run(("train", "a b", 0), ("validation", "a b", 1), ("train", "c d", 1))
    assert kept["text"].tolist() == ["c d"]


def test_counts_add_up() -> None:
    rows = [("train", text, 0) for text in ("a b", "a b", None, "", "x", "c\0 d", "e f", "g h")]
    kept, counts = run(*rows, ("train", "q r", 0), ("train", "q r", 1), ("validation", "g h", 0))
    train = counts["train"]
    assert tuple(train["dropped"]) == DROP_REASONS
    assert train["raw"] == 10 == train["filtered"] + sum(train["dropped"].values())
    assert train["filtered"] == 2 == (kept["split"] == "train").sum()
    assert train["distinct"] == train["filtered"] + sum(
        train["dropped"][name] for name in ("too_short", "too_long", "in_validation")
    )


def test_nothing_left_is_an_empty_table_with_its_counts() -> None:
    kept, counts = run(("train", None, 0), ("train", "\0", 1))
    assert kept.empty and "tokens" in kept and counts["train"]["raw"] == 2


def test_input_is_not_changed() -> None:
    frame = table(("train", "a b", 0), ("train", "a b", 0))
    before = frame.copy()
    clean(frame, COUNT, 1, 9)
    pd.testing.assert_frame_equal(frame, before)


def test_near_copies_have_equal_letters() -> None:
    assert near_copies(["Buy now 12!", "buy NOW", "sell now"], ["buy  now 34"]) == 2
