"""Preparing a data set: whole or absent, the same bytes for the same input, read back only if unchanged."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from latreft.data.prepare import prepare
from latreft.data.prepared import load_split
from latreft.files import read_json, sha256

SCRIPT = Path(__file__).parents[3] / "src" / "prepare_data.py"


def files(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path) for path in folder.iterdir()}


def test_manifest_lists_what_was_written(make_settings: Any, tmp_path: Path) -> None:
    manifest = prepare("rows", make_settings(tuning=5), tmp_path / "out", tmp_path)
    assert manifest == read_json(tmp_path / "out" / "manifest.json")
    assert set(manifest["files"]) == {"ft_train.parquet", "attack.parquet", "tuning.parquet", "validation.parquet"}
    assert all(sha256(tmp_path / "out" / name) == digest for name, digest in manifest["files"].items())
    assert manifest["splits"]["ft_train"]["rows"] == 40
    assert sum(manifest["splits"]["ft_train"]["classes"].values()) == 40
    assert manifest["origin"]["train"]["raw"] == 60 and manifest["available"] == {"train": 60, "validation": 20}
    assert manifest["length"]["tokenizer"] == "whitespace" and manifest["label_names"] == ["no", "yes"]
    assert manifest["source"]["citation"] == "made up" and manifest["settings"]["ft_train"] == 40


def test_splits_read_back_with_their_columns(make_settings: Any, tmp_path: Path) -> None:
    prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    frame = load_split(tmp_path / "out" / "manifest.json", "attack")
    assert list(frame.columns) == ["id", "text", "label", "tokens"] and len(frame) == 10
    assert frame["label"].dtype == "int64" and (frame["tokens"] == [len(text.split()) for text in frame["text"]]).all()


def test_equal_input_gives_equal_bytes_whatever_the_row_order(
    make_settings: Any, parquet: Path, tmp_path: Path
) -> None:
    prepare("rows", make_settings(), tmp_path / "one", tmp_path)
    pd.read_parquet(parquet).sample(frac=1, random_state=0).to_parquet(parquet)
    prepare("rows", make_settings(), tmp_path / "two", tmp_path)
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert one.pop("manifest.json") != two.pop("manifest.json")  # the source file has another checksum
    assert one == two
    prepare("rows", make_settings(), tmp_path / "three", tmp_path)
    assert files(tmp_path / "three") == files(tmp_path / "two")


def test_manifest_has_no_absolute_path(make_settings: Any, tmp_path: Path) -> None:
    prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    assert str(tmp_path) not in (tmp_path / "out" / "manifest.json").read_text()


def test_a_text_on_both_sides_reaches_validation_only(make_settings: Any, parquet: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(parquet)
    leaked = rows[rows["split"] == "test"].head(6).assign(split="train")
    pd.concat([rows, leaked, leaked]).to_parquet(parquet)
    manifest = prepare("rows", make_settings(ft_train=50), tmp_path / "out", tmp_path)
    parts = [load_split(tmp_path / "out" / "manifest.json", split) for split in ("ft_train", "attack", "validation")]
    assert pd.concat(parts)["text"].is_unique and len(parts[2]) == 20
    dropped = manifest["origin"]["train"]["dropped"]
    assert dropped["in_validation"] == 6 and dropped["copy"] == 6


def test_a_share_becomes_validation_without_a_copy_across(make_settings: Any, parquet: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(parquet)
    pd.concat([rows, rows]).to_parquet(parquet)
    settings = make_settings(
        source={"kind": "parquet", "path": parquet.name, "citation": "made up"}, validation_share=0.25, ft_train=45
    )
    manifest = prepare("rows", settings, tmp_path / "out", tmp_path)
    assert manifest["origin"]["train"]["raw"] == 160 and manifest["available"] == {"train": 60, "validation": 20}
    parts = [load_split(tmp_path / "out" / "manifest.json", split) for split in ("ft_train", "attack", "validation")]
    assert pd.concat(parts)["text"].is_unique


def test_a_failure_leaves_no_manifest_of_before(make_settings: Any, parquet: Path, tmp_path: Path) -> None:
    prepare("rows", make_settings(tuning=5), tmp_path / "out", tmp_path)
    parquet.write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot be read"):
        prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    assert files(tmp_path / "out") == {}


def test_the_manifest_is_written_last(make_settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latreft.data.prepare.near_copies", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_splits_no_longer_wanted_do_not_stay(make_settings: Any, tmp_path: Path) -> None:
    prepare("rows", make_settings(tuning=5), tmp_path / "out", tmp_path)
    prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    assert not (tmp_path / "out" / "tuning.parquet").exists()


def test_a_changed_or_missing_file_is_not_read(make_settings: Any, tmp_path: Path) -> None:
    prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    manifest = tmp_path / "out" / "manifest.json"
    with pytest.raises(ValueError, match=r"no split 'test'; it has attack, ft_train, validation"):
        load_split(manifest, "test")
    (tmp_path / "out" / "attack.parquet").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"attack\.parquet is not the file"):
        load_split(manifest, "attack")
    (tmp_path / "out" / "attack.parquet").unlink()
    with pytest.raises(FileNotFoundError, match=r"attack\.parquet is listed"):
        load_split(manifest, "attack")


def test_texts_survive_unchanged(make_settings: Any, parquet: Path, tmp_path: Path) -> None:
    rows = pd.read_parquet(parquet)
    rows.loc[60, "text"] = " naïve 🙂\r\n<br />\ttext\u2028with  spaces "
    rows.to_parquet(parquet)
    prepare("rows", make_settings(), tmp_path / "out", tmp_path)
    assert rows.loc[60, "text"] in load_split(tmp_path / "out" / "manifest.json", "validation")["text"].tolist()


def run_script(settings: dict[str, Any], manifest: Path) -> None:
    job = SimpleNamespace(
        params=SimpleNamespace(dataset="rows", settings=settings),
        output=SimpleNamespace(manifest=str(manifest)),
        log=[str(manifest.parents[1] / "logs" / "rows.log")],
    )
    runpy.run_path(str(SCRIPT), init_globals={"snakemake": job})


def test_the_rule_script_prepares(make_settings: Any, tmp_path: Path) -> None:
    run_script(make_settings().model_dump(mode="json"), tmp_path / "out" / "manifest.json")
    assert len(load_split(tmp_path / "out" / "manifest.json", "ft_train")) == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"atack": 3}, "error: data set 'rows': unknown key 'atack'"),
        ({"ft_train": 70}, "error: data set 'rows': ft_train"),
    ],
)
def test_the_rule_script_says_one_line_for_bad_settings(
    make_settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        run_script(make_settings().model_dump(mode="json") | changes, tmp_path / "out" / "manifest.json")
    said = capsys.readouterr().err
    assert stopped.value.code == 1 and said.startswith(message) and said.count("\n") == 1
    assert (tmp_path / "logs" / "rows.log").read_text() == said
