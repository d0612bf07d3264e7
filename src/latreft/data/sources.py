"""Reading a data set: one function a kind of source, one table out.

Each function returns ``(frame, provenance)``. The frame has the columns ``id`` (16 hex digits of the text's SHA-256, so
it depends on neither row order nor file), ``split`` ('train' or 'validation'), ``text`` (str or None) and ``label``
(0 or 1). The provenance says where the rows came from, without absolute paths.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latreft.data.settings import GeneratedSource, HubSource, ParquetSource, SampleSource
from latreft.files import sha256

if TYPE_CHECKING:
    import pandas as pd

PROJECT = Path(__file__).resolve().parents[3]
SAMPLES = PROJECT / "resources" / "sample"
SPLITS = ("train", "validation")


def text_id(text: str | None) -> str:
    """Stable identity of a text: the first 16 hex digits of its SHA-256 (UTF-8)."""
    return hashlib.sha256((text or "").encode("utf-8", "surrogatepass")).hexdigest()[:16]


def portable(path: str | Path) -> str:
    """``path`` as a manifest may hold it: as given when relative, the name alone when absolute."""
    return Path(path).name if Path(path).is_absolute() else Path(path).as_posix()


def load_source(
    name: str, source: HubSource | ParquetSource | SampleSource | GeneratedSource, labels: tuple[str, str], root: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read the source of data set ``name``; relative paths are taken from ``root`` (a sample's from the project)."""
    if isinstance(source, HubSource):
        return from_hub(source, labels)
    if isinstance(source, ParquetSource):
        return from_parquet(source, labels, root)
    if isinstance(source, SampleSource):
        return from_sample(name, source, labels)
    return from_generator(source)


def from_hub(source: HubSource, labels: tuple[str, str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A data set of the hub at its pinned commit, or a local folder in its place.

    Raises ``OSError`` if it cannot be had and ``ValueError`` if its columns, splits or labels are not the configured.
    """
    wanted = {"train": source.train_split, "validation": source.validation_split}
    wanted_splits = {split: hub_split for split, hub_split in wanted.items() if hub_split is not None}
    where = f"{source.repo} at {source.revision}"
    parts = []
    for split, part in _load_hub_splits(source, wanted_splits, where).items():
        place = f"{where}, split '{wanted_splits[split]}'"
        _require_columns([source.text_column, source.label_column], part.column_names, place)
        _check_label_order(part.features[source.label_column], labels, place)
        frame = part.select_columns([source.text_column, source.label_column]).to_pandas()
        parts.append(_rows(split, frame[source.text_column], frame[source.label_column], labels, place))
    provenance = {
        "kind": "hub", "repo": portable(source.repo), "revision": source.revision, "config": source.config,
        "columns": [source.text_column, source.label_column], "splits": wanted_splits, "citation": source.citation,
    }  # fmt: skip
    if source.local:
        provenance["files"] = _checksums(sorted(Path(source.repo).rglob("*.parquet")))
    return _concat(parts), provenance


def from_parquet(source: ParquetSource, labels: tuple[str, str], root: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A parquet file or all ``*.parquet`` of a folder, in name order.

    Rows whose split column holds neither configured value are left out and counted (``ignored_rows``). Raises
    ``FileNotFoundError`` or ``ValueError`` naming the file, and the column with the columns found.
    """
    import pandas as pd

    files = _parquet_files(root / source.path)
    columns = [source.text_column, source.label_column, *([source.split_column] if source.split_column else [])]
    table = pd.concat([_read_parquet(file, columns) for file in files], ignore_index=True)
    parts, ignored = [], 0
    if source.split_column is None:
        parts.append(_rows("train", table[source.text_column], table[source.label_column], labels, source.path))
    else:
        values = {"train": source.train_value, "validation": source.validation_value}
        for split, value in values.items():
            chosen = table[table[source.split_column] == value]
            if value is None:
                continue
            if chosen.empty:
                found = sorted({str(other) for other in table[source.split_column]})
                raise ValueError(
                    f"{source.path}: no row has {value!r} in column '{source.split_column}' ({split} rows); "
                    f"values found: {', '.join(found[:10]) or 'none'}"
                )
            parts.append(_rows(split, chosen[source.text_column], chosen[source.label_column], labels, source.path))
        ignored = len(table) - sum(len(part) for part in parts)
    provenance = {
        "kind": "parquet", "path": portable(source.path), "files": _checksums(files), "columns": columns,
        "ignored_rows": ignored, "citation": source.citation,
    }  # fmt: skip
    return _concat(parts), provenance


def from_sample(name: str, source: SampleSource, labels: tuple[str, str]) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A sample committed with the project; without a path, the one that bears the data set's name.

    A relative path is taken from the project's folder, wherever the work is done.
    """
    path = str(SAMPLES / f"{name}.parquet") if source.path is None else source.path
    parquet = ParquetSource(
        kind="parquet", path=path, split_column="split", validation_value="validation", citation=source.citation
    )
    frame, provenance = from_parquet(parquet, labels, PROJECT)
    return frame, provenance | {"kind": "sample"}


def from_generator(source: GeneratedSource) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Texts made here (PasswordMatch)."""
    from latreft.data.password_match import generate

    frame = generate(source.train, source.validation, source.seed)
    frame.insert(0, "id", [text_id(text) for text in frame["text"]])
    return frame, source.model_dump() | {"citation": "generated by this project (latreft.data.password_match)"}


def _load_hub_splits(source: HubSource, splits: dict[str, str], where: str) -> dict[str, Any]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    revision = None if source.local else source.revision
    try:
        loaded = load_dataset(source.repo, name=source.config, revision=revision, split=list(splits.values()))
    except (OSError, DatasetGenerationError) as error:
        raise OSError(
            f"cannot load data set {where}: {_first_line(error)}; check the network (or the hub cache, if offline), "
            "the name and the commit, and that the account has accepted a gated data set's licence"
        ) from None
    except (ValueError, KeyError) as error:
        listed = ", ".join(splits.values())
        raise ValueError(f"cannot load data set {where}, splits {listed}: {_first_line(error)}") from None
    return dict(zip(splits, loaded, strict=True))


def _check_label_order(feature: Any, labels: tuple[str, str], where: str) -> None:
    """Where the data set names its labels with the configured words, they must be in the configured order."""
    names = [str(name).casefold() for name in getattr(feature, "names", None) or []]
    wanted = [name.casefold() for name in labels]
    if names == wanted[::-1]:
        raise ValueError(f"{where}: its labels are {feature.names}, label_names says {list(labels)}; swap label_names")


def _parquet_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(path.glob("*.parquet"))
    if not files:
        fault = "holds no *.parquet file" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f"{path} {fault}; give source.path a parquet file or a folder of them")
    return files


def _read_parquet(path: Path, columns: Sequence[str]) -> pd.DataFrame:
    import pyarrow.parquet as pq
    from pyarrow import ArrowException

    try:
        _require_columns(columns, pq.read_schema(path).names, str(path))
        frame: pd.DataFrame = pq.read_table(path, columns=list(columns), partitioning=None).to_pandas()
    except (ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path} cannot be read as parquet ({_first_line(error)}); is the download whole?") from None
    return frame


def _require_columns(wanted: Iterable[str], found: Sequence[str], where: str) -> None:
    missing = [column for column in wanted if column not in found]
    if missing:
        named = ", ".join(f"'{column}'" for column in missing)
        raise ValueError(f"{where}: no column {named}; columns found: {', '.join(found)}")


def _rows(split: str, texts: pd.Series, labels: pd.Series, names: tuple[str, str], where: str) -> pd.DataFrame:
    import pandas as pd

    plain: list[str | None] = [_text(value, where) for value in texts]
    return pd.DataFrame(
        {
            "id": [text_id(text) for text in plain],
            "split": split,
            "text": pd.Series(plain, dtype=object),
            "label": _labels(labels, names, where),
        }
    )


def _text(value: Any, where: str) -> str | None:
    """One text; a list of strings (chunks of one text) is joined, a missing value is None."""
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and value != value):  # pandas has NaN for None
        return None
    if not hasattr(value, "__iter__") or not all(isinstance(chunk, str) for chunk in value):
        raise ValueError(f"{where}: a text is {value!r} ({type(value).__name__}), not a string or a list of strings")
    return "".join(value)


def _labels(values: pd.Series, names: tuple[str, str], where: str) -> list[int]:
    """Labels as 0 and 1, from 0 and 1 or from the configured names; anything else is an error that counts it."""
    known: dict[Any, int] = {0: 0, 1: 1, names[0]: 0, names[1]: 1}
    plain = values.tolist()
    unknown = [value for value in plain if not isinstance(value, (int, float, str)) or value not in known]
    if unknown:
        counts = {repr(value): sum(repr(other) == repr(value) for other in unknown) for value in unknown[:5]}
        listed = ", ".join(f"{value} ({count} rows)" for value, count in counts.items())
        raise ValueError(f"{where}: unknown labels {listed}; right are 0 or '{names[0]}' and 1 or '{names[1]}'")
    return [known[value] for value in plain]


def _checksums(files: Iterable[Path]) -> dict[str, str]:
    return {file.name: sha256(file) for file in files}


def _concat(parts: list[pd.DataFrame]) -> pd.DataFrame:
    import pandas as pd

    return pd.concat(parts, ignore_index=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
