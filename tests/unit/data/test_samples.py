"""The committed samples: small, real, balanced, clean, and drawn again to the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from latreft.data.cleaning import clean, near_copies
from latreft.data.lengths import LengthCounter
from latreft.data.make_sample import ENRON, IMDB, LABELS, ROWS, draw, write_sample
from latreft.data.prepare import prepare
from latreft.data.prepared import load_split
from latreft.data.settings import DatasetSettings
from latreft.data.sources import SAMPLES, text_id

NAMES = ["imdb", "enron_spam"]


def sample(name: str) -> pd.DataFrame:
    return pd.read_parquet(SAMPLES / f"{name}.parquet")


def test_samples_are_small_enough_to_be_committed() -> None:
    assert sum((SAMPLES / f"{name}.parquet").stat().st_size for name in NAMES) < 900_000


@pytest.mark.parametrize("name", NAMES)
def test_both_classes_are_equally_frequent_in_each_split(name: str) -> None:
    counts = sample(name).groupby(["split", "label"]).size()
    assert counts.to_dict() == {(split, label): rows // 2 for split, rows in ROWS[name].items() for label in (0, 1)}


@pytest.mark.parametrize("name", NAMES)
def test_samples_are_clean(name: str) -> None:
    frame = sample(name)
    assert frame["id"].tolist() == [text_id(text) for text in frame["text"]]
    kept, _ = clean(frame, LengthCounter("whitespace").count, 30, 220)
    assert len(kept) == len(frame)
    parts = [frame.loc[frame["split"] == split, "text"].tolist() for split in ("train", "validation")]
    assert near_copies(*parts) == 0


@pytest.mark.parametrize("name", NAMES)
def test_samples_prepare(name: str, tmp_path: Path) -> None:
    settings = DatasetSettings.model_validate(
        {
            "source": {"kind": "sample"}, "label_names": LABELS[name], "title": name, "max_length": 128,
            "ft_train": 400, "attack": 20, "tuning": 40, "validation": 100,
            "length": {"min_tokens": 30, "max_tokens": 220, "tokenizer": "whitespace"},
        }
    )  # fmt: skip
    prepare(name, settings, tmp_path, "/")
    assert len(load_split(tmp_path / "manifest.json", "validation")) == 100


def test_drawing_is_deterministic_and_independent_of_row_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["alpha", "beta", "gamma", "delta"]
    texts = [f"{words[index % 4]} {'ab'[index % 2] * (index + 1)} " + "word " * 110 for index in range(80)]
    rows = pd.DataFrame({"text": texts, "label": [0, 1] * 40, "split": ["train"] * 40 + ["test"] * 40})
    monkeypatch.setitem(ROWS, "imdb", {"train": 20, "validation": 10})
    monkeypatch.setitem(ROWS, "enron_spam", {"train": 20, "validation": 6})
    sources: dict[str, Any] = {"imdb": IMDB, "enron_spam": ENRON}
    for name, source in sources.items():
        drawn = []
        for seed in (0, 1):
            rows.sample(frac=1, random_state=seed).to_parquet(tmp_path / f"{name}.parquet")
            drawn.append(draw(name, source, tmp_path, LengthCounter("whitespace")))
            write_sample(tmp_path / f"{seed}.parquet", drawn[-1])
        pd.testing.assert_frame_equal(*drawn)
        assert (tmp_path / "0.parquet").read_bytes() == (tmp_path / "1.parquet").read_bytes()
        assert len(drawn[0]) == sum(ROWS[name].values())
