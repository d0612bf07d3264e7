"""Small data sets on disk, and settings to read them, for the tests of ``latreft.data``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from latreft.data.settings import DatasetSettings
from latreft.settings import validate


def _rows(train: int, validation: int) -> pd.DataFrame:
    total = train + validation
    return pd.DataFrame(
        {
            "split": ["train"] * train + ["test"] * validation,
            "label": [index % 2 for index in range(total)],
            "text": [f"row {index} says word{index % 7} and then word{'x' * (index // 26)}{chr(97 + index % 26)}"
                     for index in range(total)],
        }
    )  # fmt: skip


@pytest.fixture
def make_rows() -> Callable[[int, int], pd.DataFrame]:
    """Makes a table of distinct texts of seven words: split ('train', 'test'), label (alternating), text."""
    return _rows


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    """A file of 60 training and 20 test rows."""
    path = tmp_path / "rows.parquet"
    _rows(60, 20).to_parquet(path)
    return path


@pytest.fixture
def make_settings(parquet: Path) -> Callable[..., DatasetSettings]:
    """Makes settings for the file of fixture ``parquet``; keywords replace top-level values."""

    def make(**changes: Any) -> DatasetSettings:
        values: dict[str, Any] = {
            "source": {
                "kind": "parquet", "path": str(parquet), "split_column": "split", "validation_value": "test",
                "citation": "made up",
            },
            "label_names": ["no", "yes"], "title": "Rows", "max_length": 32, "ft_train": 40, "attack": 10,
            "length": {"min_tokens": 2, "max_tokens": 20, "tokenizer": "whitespace"},
        }  # fmt: skip
        return validate(DatasetSettings, values | changes, "test")

    return make
