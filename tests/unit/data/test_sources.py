"""Reading data sets: one table whatever the source, and one clear error for a source that is not as configured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from latreft.data.settings import GeneratedSource, HubSource, ParquetSource, SampleSource
from latreft.data.sources import from_generator, from_hub, from_parquet, from_sample, load_source, text_id
from latreft.files import sha256

LABELS = ("no", "yes")
COLUMNS = ["id", "split", "text", "label"]


def source(path: str | Path, **changes: Any) -> ParquetSource:
    values = {"split_column": "split", "validation_value": "test"} | changes
    return ParquetSource(kind="parquet", path=str(path), citation="made up", **values)


def write(path: Path, **columns: list[Any]) -> Path:
    pd.DataFrame(columns).to_parquet(path)
    return path


def test_parquet_rows_get_stable_ids_and_project_split_names(parquet: Path) -> None:
    frame, provenance = from_parquet(source(parquet), LABELS, Path("/"))
    assert list(frame.columns) == COLUMNS
    assert frame["split"].value_counts().to_dict() == {"train": 60, "validation": 20}
    assert frame["id"].is_unique and frame["id"][0] == text_id(frame["text"][0])
    assert provenance["files"] == {"rows.parquet": sha256(parquet)}
    assert provenance["path"] == "rows.parquet"  # no absolute path


def test_relative_paths_are_taken_from_the_root(parquet: Path) -> None:
    frame, provenance = from_parquet(source(parquet.name), LABELS, parquet.parent)
    assert len(frame) == 80 and provenance["path"] == "rows.parquet"


def test_a_folder_of_parquet_files_is_one_table(tmp_path: Path, make_rows: Any) -> None:
    rows = make_rows(10, 6)
    (tmp_path / "with space").mkdir()
    rows[:7].to_parquet(tmp_path / "with space" / "a.parquet")
    rows[7:].to_parquet(tmp_path / "with space" / "b.parquet")
    frame, provenance = from_parquet(source(tmp_path / "with space"), LABELS, tmp_path)
    assert len(frame) == 16 and set(provenance["files"]) == {"a.parquet", "b.parquet"}


def test_without_a_split_column_all_rows_are_training_rows(parquet: Path) -> None:
    frame, _ = from_parquet(source(parquet, split_column=None, validation_value=None), LABELS, Path("/"))
    assert set(frame["split"]) == {"train"} and len(frame) == 80


def test_rows_of_other_splits_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", split=["train", "test", "unsup"], label=[0, 1, -1], text=["a", "b", "c"])
    frame, provenance = from_parquet(source(path), LABELS, tmp_path)
    assert len(frame) == 2 and provenance["ignored_rows"] == 1


def test_a_missing_column_names_column_file_and_columns_found(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", review=["a"], label=[0], split=["train"])
    with pytest.raises(ValueError, match=r"f\.parquet: no column 'text'; columns found: review, label, split"):
        from_parquet(source(path), LABELS, tmp_path)


@pytest.mark.parametrize("content", [b"", b"not parquet at all", b"PAR1 cut short"])
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.parquet"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.parquet cannot be read as parquet"):
        from_parquet(source(path), LABELS, tmp_path)


def test_a_truncated_download_is_named(parquet: Path) -> None:
    parquet.write_bytes(parquet.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"rows\.parquet cannot be read as parquet .* is the download whole"):
        from_parquet(source(parquet), LABELS, Path("/"))


def test_a_missing_file_and_an_empty_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"gone\.parquet does not exist"):
        from_parquet(source("gone.parquet"), LABELS, tmp_path)
    with pytest.raises(FileNotFoundError, match=r"holds no \*\.parquet file"):
        from_parquet(source(tmp_path), LABELS, tmp_path)


def test_a_split_value_that_no_row_has_is_an_error_with_those_found(parquet: Path) -> None:
    with pytest.raises(ValueError, match=r"no row has 'valid' in column 'split' .*values found: test, train"):
        from_parquet(source(parquet, validation_value="valid"), LABELS, Path("/"))


@pytest.mark.parametrize("labels", [[0, 2], [0, None], ["no", "maybe"], ["0", "1"], [0.5, 1.0]])
def test_unknown_labels_are_errors(tmp_path: Path, labels: list[Any]) -> None:
    path = write(tmp_path / "f.parquet", text=["a", "b"], label=labels, split=["train", "test"])
    with pytest.raises(ValueError, match=r"unknown labels .* right are 0 or 'no' and 1 or 'yes'"):
        from_parquet(source(path), LABELS, tmp_path)


@pytest.mark.parametrize("labels", [[1, 0], ["yes", "no"], [True, False], [1.0, 0.0]])
def test_labels_are_read_from_numbers_or_names(tmp_path: Path, labels: list[Any]) -> None:
    path = write(tmp_path / "f.parquet", text=["a", "b"], label=labels, split=["train", "test"])
    frame, _ = from_parquet(source(path), LABELS, tmp_path)
    assert frame["label"].tolist() == [1, 0]


def test_chunked_texts_are_joined_and_missing_ones_kept_as_none(tmp_path: Path) -> None:
    texts = [["one ", "two"], None]
    path = write(tmp_path / "f.parquet", text=texts, label=[0, 1], split=["train", "test"])
    frame, _ = from_parquet(source(path), LABELS, tmp_path)
    assert frame["text"].tolist() == ["one two", None]


def test_a_text_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", text=[1, 2], label=[0, 1], split=["train", "test"])
    with pytest.raises(ValueError, match=r"f\.parquet: a text is 1 \(int\), not a string"):
        from_parquet(source(path), LABELS, tmp_path)


def test_samples_are_found_by_the_name_of_the_data_set() -> None:
    frame, provenance = from_sample("imdb", SampleSource(kind="sample"), ("negative", "positive"))
    assert set(frame["split"]) == {"train", "validation"}
    assert provenance["kind"] == "sample" and provenance["path"] == "imdb.parquet"


def test_samples_are_read_from_the_project_wherever_the_work_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample = SampleSource(kind="sample", path="resources/sample/enron_spam.parquet")
    frame, provenance = load_source("enron", sample, ("ham", "spam"), tmp_path)
    assert len(frame) == 700 and provenance["path"] == "resources/sample/enron_spam.parquet"


def test_a_sample_that_does_not_exist_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet does not exist"):
        from_sample("nothing", SampleSource(kind="sample"), LABELS)


def test_generated_rows_have_the_same_columns() -> None:
    generated = GeneratedSource(kind="generated", generator="password_match", train=10, validation=4)
    frame, provenance = from_generator(generated)
    assert list(frame.columns) == COLUMNS and len(frame) == 14
    assert provenance["generator"] == "password_match" and provenance["seed"] == 0
    assert load_source("password_match", generated, ("DENIED", "GRANTED"), Path("/"))[0].equals(frame)


# --- the hub, by a local stand-in that ``datasets`` loads the same way


@pytest.fixture
def hub(tmp_path: Path, make_rows: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder laid out as a hub data set; the library's cache goes to a temporary folder and the network is off."""
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    rows = make_rows(12, 6).rename(columns={"text": "content", "label": "clf_label"})
    (tmp_path / "repo" / "data").mkdir(parents=True)
    for split, value in (("train", "train"), ("validation", "test")):
        part = rows[rows["split"] == value].drop(columns="split")
        part.to_parquet(tmp_path / "repo" / "data" / f"{split}-00000-of-00001.parquet")
    return tmp_path / "repo"


def hub_source(repo: str | Path, **changes: Any) -> HubSource:
    values = {"label_column": "clf_label", "revision": "0" * 40} | changes
    return HubSource(kind="hub", repo=str(repo), citation="made up", **values)


def test_a_hub_data_set_is_read_by_its_stand_in(hub: Path) -> None:
    frame, provenance = from_hub(hub_source(hub), LABELS)
    assert list(frame.columns) == COLUMNS
    assert frame["split"].value_counts().to_dict() == {"train": 12, "validation": 6}
    assert provenance["repo"] == "repo" and len(provenance["files"]) == 2


def test_a_hub_data_set_may_have_no_validation_split(hub: Path) -> None:
    frame, provenance = from_hub(hub_source(hub, validation_split=None), LABELS)
    assert set(frame["split"]) == {"train"} and provenance["splits"] == {"train": "train"}


def test_hub_columns_are_checked(hub: Path) -> None:
    with pytest.raises(
        ValueError, match=r"repo at 0+, split 'train': no column 'label'; columns found: clf_label, content"
    ):
        from_hub(hub_source(hub, label_column="label"), LABELS)


def test_hub_splits_are_checked(hub: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot load data set .*repo at 0+, splits train, test"):
        from_hub(hub_source(hub, validation_split="test"), LABELS)


def test_label_names_in_the_other_order_are_an_error(tmp_path: Path, hub: Path) -> None:
    import datasets

    features = datasets.Features(
        {"content": datasets.Value("string"), "clf_label": datasets.ClassLabel(names=["YES", "NO"])}
    )
    rows = datasets.Dataset.from_dict({"content": ["a", "b"], "clf_label": [0, 1]}, features=features)
    rows.to_parquet(tmp_path / "named" / "train.parquet")
    with pytest.raises(ValueError, match=r"labels are \['YES', 'NO'\], label_names says \['no', 'yes'\]; swap"):
        from_hub(hub_source(tmp_path / "named", validation_split=None), LABELS)


def test_a_data_set_that_cannot_be_had_is_one_error_naming_it(hub: Path) -> None:
    with pytest.raises(OSError, match=r"cannot load data set nobody/nothing at 0+: .* check the network"):
        from_hub(hub_source("nobody/nothing"), LABELS)


def test_a_missing_text_among_texts_stays_none(tmp_path: Path) -> None:
    path = write(tmp_path / "f.parquet", text=["one", None], label=[0, 1], split=["train", "test"])
    assert from_parquet(source(path), LABELS, tmp_path)[0]["text"].tolist() == ["one", None]


@pytest.mark.parametrize("text", [[1.5, 2.5], [["a", None], ["b"]]])
def test_texts_of_another_type_are_not_taken_for_missing(tmp_path: Path, text: list[Any]) -> None:
    path = write(tmp_path / "f.parquet", text=text, label=[0, 1], split=["train", "test"])
    with pytest.raises(ValueError, match="not a string or a list of strings"):
        from_parquet(source(path), LABELS, tmp_path)
