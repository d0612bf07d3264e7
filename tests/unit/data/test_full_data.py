"""The full data sets give the documented counts.

Set LATREFT_FULL_DATA to the folder with imdb.parquet and enron_spam.parquet, and LATREFT_GPT2 to a folder with GPT-2's
encoder.json and vocab.bpe (without it the hub's gpt2 is used).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from latreft.data.lengths import GPT2_VOCABULARY, LengthCounter, length_counter
from latreft.data.make_sample import draw
from latreft.data.prepare import prepare
from latreft.data.prepared import load_split
from latreft.data.settings import DatasetSettings
from latreft.data.sources import SAMPLES
from latreft.settings import validate

FULL = os.environ.get("LATREFT_FULL_DATA")
TOKENIZER = f"bpe:{os.environ['LATREFT_GPT2']}" if "LATREFT_GPT2" in os.environ else "gpt2"

pytestmark = pytest.mark.skipif(not FULL, reason="LATREFT_FULL_DATA is not set")

IMDB = {
    "source": {"kind": "parquet", "path": "imdb.parquet", "split_column": "split", "validation_value": "test",
               "citation": "Maas et al., 2011"},
    "label_names": ["negative", "positive"], "ft_train": 20_000, "attack": 100, "tuning": 500,
}  # fmt: skip
ENRON = {
    "source": {"kind": "parquet", "path": "enron_spam.parquet", "citation": "Metsis et al., 2006"},
    "label_names": ["ham", "spam"], "ft_train": 18_000, "attack": 100, "validation_share": 0.06,
}  # fmt: skip


@pytest.fixture(scope="module")
def counter() -> LengthCounter:
    """GPT-2's tokenizer."""
    return length_counter(TOKENIZER, "/")


def settings(values: dict[str, Any]) -> DatasetSettings:
    length = {"min_tokens": 100, "max_tokens": 1_000, "tokenizer": TOKENIZER}
    return validate(DatasetSettings, values | {"title": "t", "max_length": 512, "length": length}, "test")


def test_gpt2_has_its_vocabulary(counter: LengthCounter) -> None:
    assert counter.describe()["vocabulary"] == GPT2_VOCABULARY
    assert counter.count(["Hello world", " Hello world"]) == [2, 2]


def test_imdb_counts(tmp_path: Path, counter: LengthCounter) -> None:
    manifest = prepare("imdb", settings(IMDB), tmp_path, str(FULL))
    train, validation = manifest["origin"]["train"], manifest["origin"]["validation"]
    assert (train["raw"], train["distinct"]) == (25_000, 24_904)
    assert (validation["raw"], validation["distinct"]) == (25_000, 24_801)
    assert (train["filtered"], train["dropped"]["in_validation"]) == (22_359, 106)  # 22,465 distinct in train
    assert validation["filtered"] == 22_253 == len(load_split(tmp_path / "manifest.json", "validation"))
    assert train["dropped"]["conflicting_labels"] == 0
    rows = pd.read_parquet(Path(str(FULL)) / "imdb.parquet")
    tokens = pd.Series(counter.count(rows["text"].tolist()))
    kept = tokens.between(100, 1_000)
    assert kept.groupby(rows["split"]).sum().to_dict() == {"train": 22_554, "test": 22_435}
    assert (tokens[kept] > 512).mean() == pytest.approx(0.123, abs=5e-4)
    assert (tokens[kept] > 512 - 10).mean() == pytest.approx(0.130, abs=5e-4)  # content beside ten attacked tokens


def test_enron_counts(tmp_path: Path, counter: LengthCounter) -> None:
    manifest = prepare("enron_spam", settings(ENRON), tmp_path, str(FULL))
    origin = manifest["origin"]["train"]
    assert (origin["raw"], origin["filtered"]) == (33_715, 20_510)
    assert origin["dropped"]["copy"] == 3_222
    assert manifest["available"] == {"train": 20_510 - round(0.06 * 20_510), "validation": round(0.06 * 20_510)}
    rows = pd.read_parquet(Path(str(FULL)) / "enron_spam.parquet")
    tokens = pd.Series(counter.count(rows["text"].tolist()))
    kept = tokens.between(100, 1_000)
    assert kept.sum() == 22_587
    assert (tokens[kept] > 512).mean() == pytest.approx(0.197, abs=5e-4)
    assert (tokens[kept] > 512 - 10).mean() == pytest.approx(0.204, abs=5e-4)


@pytest.mark.parametrize("name", ["imdb", "enron_spam"])
def test_committed_samples_are_what_the_full_data_gives(name: str, counter: LengthCounter) -> None:
    from latreft.data import make_sample

    source = {"imdb": make_sample.IMDB, "enron_spam": make_sample.ENRON}[name]
    committed = pd.read_parquet(SAMPLES / f"{name}.parquet")
    pd.testing.assert_frame_equal(draw(name, source, Path(str(FULL)), counter), committed, check_dtype=False)
    assert all(100 <= tokens <= 220 for tokens in counter.count(committed["text"].tolist()))
