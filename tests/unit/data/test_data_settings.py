"""Settings of data sets: what is refused, and that the message says what would be right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latreft.data.settings import DatasetSettings, HubSource, LengthFilter
from latreft.settings import SettingsError, validate

HUB = {"kind": "hub", "repo": "someone/data", "revision": "0" * 40, "label_column": "label", "citation": "x"}


@pytest.mark.parametrize("revision", ["main", "latest", "v2", "0" * 39, "A" * 40, "2.1.0-dev"])
def test_a_revision_that_can_move_is_refused_and_the_reason_given(revision: str) -> None:
    with pytest.raises(SettingsError, match=r"someone/data must be a commit of 40 .* a branch moves"):
        validate(HubSource, HUB | {"revision": revision}, "config.yaml")


@pytest.mark.parametrize("revision", ["0" * 40, "2.1.0", "v1.0"])
def test_a_commit_or_a_version_is_accepted(revision: str) -> None:
    assert validate(HubSource, HUB | {"revision": revision}, "config.yaml").has_validation


def test_a_local_folder_needs_no_commit(tmp_path: Path) -> None:
    assert validate(HubSource, HUB | {"repo": str(tmp_path), "revision": "local"}, "config.yaml").local


@pytest.mark.parametrize("tokenizer", ["gpt-2", "file:", "bpe", "words", ""])
def test_an_unknown_tokenizer_is_refused_with_the_kinds_there_are(tokenizer: str) -> None:
    with pytest.raises(SettingsError, match=r"'gpt2', 'file:PATH/tokenizer\.json', 'bpe:FOLDER'"):
        validate(LengthFilter, {"min_tokens": 1, "max_tokens": 2, "tokenizer": tokenizer}, "config.yaml")


def test_an_empty_length_range_is_refused() -> None:
    with pytest.raises(SettingsError, match="max_tokens 5 is below min_tokens 6"):
        validate(LengthFilter, {"min_tokens": 6, "max_tokens": 5, "tokenizer": "whitespace"}, "config.yaml")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"validation_share": 0.1}, "source has validation rows of its own"),
        ({"label_names": ["yes", "Yes"]}, "two different names"),
        ({"ft_train": 0}, "ft_train"),
        ({"attack": 0}, "attack"),
        ({"tuning": -1}, "tuning"),
        ({"validation": 0}, "validation"),
        ({"atack": 5}, "unknown key 'atack'"),
        ({"source": {"kind": "parquet", "path": "x", "citation": "x"}}, "no validation rows; give validation_share"),
        ({"source": {"kind": "parquet", "path": "x", "citation": "x", "validation_value": "v"}}, "needs split_column"),
        ({"source": {"kind": "zip", "path": "x"}}, "source"),
    ],
)
def test_bad_values_are_named(make_settings: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        make_settings(**changes)


def test_settings_survive_a_round_trip(make_settings: Any) -> None:
    settings = make_settings()
    assert validate(DatasetSettings, settings.model_dump(mode="json"), "again") == settings


def test_importing_settings_loads_nothing_heavy() -> None:
    code = (
        "import sys, latreft.data.settings;"
        "heavy = ('torch', 'transformers', 'datasets', 'pandas', 'pyarrow', 'tokenizers');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"


def test_preparing_data_never_imports_torch_or_transformers(tmp_path: Path) -> None:
    code = (
        "import sys; from latreft.data.prepare import prepare; from latreft.data.settings import DatasetSettings;"
        "settings = DatasetSettings(source=dict(kind='generated', generator='password_match', train=50, validation=20),"
        " label_names=('DENIED', 'GRANTED'), title='t', max_length=64, ft_train=30, attack=10,"
        " length=dict(min_tokens=2, max_tokens=50, tokenizer='whitespace'));"
        f"prepare('password_match', settings, {str(tmp_path)!r}, '.');"
        "print([m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert done.stdout.strip() == "[]"


def _environment() -> dict[str, str]:
    import os

    import latreft

    return os.environ | {"PYTHONPATH": str(Path(latreft.__file__).parents[1])}
