"""Prepare a data set once: read, clean, split, write parquet files, and last the manifest that makes them count.

The manifest holds no time and no absolute path, and equal settings and data give equal bytes. ``latreft.data.prepared``
reads the splits back.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latreft.data.cleaning import clean, near_copies
from latreft.data.lengths import length_counter
from latreft.data.settings import DatasetSettings
from latreft.data.sources import load_source, portable
from latreft.data.splits import carve_validation, class_counts, make_splits
from latreft.files import atomic, sha256, write_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
SPLIT_NAMES = ("ft_train", "attack", "tuning", "validation")


def prepare(name: str, settings: DatasetSettings, out_dir: str | Path, root: str | Path) -> dict[str, Any]:
    """Write the splits of data set ``name`` and their manifest into ``out_dir``; returns the manifest.

    Relative paths in ``settings`` are taken from ``root``. Each parquet file has the columns id, text, label, tokens
    (as the length filter's tokenizer counts them). Errors are ``SettingsError``, ``ValueError`` or ``OSError`` with one
    clear message; then no manifest is left.
    """
    out_dir, root = Path(out_dir), Path(root)
    _remove_old(out_dir)
    counter = length_counter(settings.length.tokenizer, root)
    raw, provenance = load_source(name, settings.source, settings.label_names, root)
    rows, origin = clean(raw, counter.count, settings.length.min_tokens, settings.length.max_tokens)
    if settings.validation_share is not None:
        rows = carve_validation(rows, settings.validation_share, settings.seed)
    splits = make_splits(name, rows, settings)
    files = {f"{split}.parquet": write_split(out_dir / f"{split}.parquet", frame) for split, frame in splits.items()}
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "title": settings.title,
        "label_names": list(settings.label_names),
        "max_length": settings.max_length,
        "seed": settings.seed,
        "source": provenance,
        "length": counter.describe()
        | {"min_tokens": settings.length.min_tokens, "max_tokens": settings.length.max_tokens},
        "origin": origin,
        "available": {split: int((rows["split"] == split).sum()) for split in ("train", "validation")},
        "splits": {split: _summary(frame, settings.label_names) for split, frame in splits.items()},
        "near_copies": {
            f"{split}_in_ft_train": near_copies(splits[split]["text"].tolist(), splits["ft_train"]["text"].tolist())
            for split in ("attack", "validation")
        },
        "files": files,
        "settings": _portable_settings(settings),
    }
    write_json(out_dir / MANIFEST, manifest)
    return manifest


def write_split(path: Path, frame: pd.DataFrame) -> str:
    """Write columns id, text, label, tokens as parquet, atomically; equal rows, equal bytes. Returns the SHA-256."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("label", pa.int64()), ("tokens", pa.int64())])
    table = pa.table({field.name: frame[field.name].tolist() for field in schema}, schema=schema)
    with atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
    return sha256(path)


def _remove_old(out_dir: Path) -> None:
    """Remove an earlier manifest, then its files: what is half replaced must not count as prepared."""
    for name in (MANIFEST, *(f"{split}.parquet" for split in SPLIT_NAMES)):
        (out_dir / name).unlink(missing_ok=True)


def _summary(frame: pd.DataFrame, label_names: tuple[str, str]) -> dict[str, Any]:
    """Rows, class balance, token counts and a hash of the content that no parquet writer's version changes."""
    lines = "\n".join(f"{row} {label}" for row, label in zip(frame["id"], frame["label"], strict=True))
    tokens = frame["tokens"]
    return {
        "rows": len(frame),
        "classes": class_counts(frame, label_names),
        "tokens": {"min": int(tokens.min()), "median": float(tokens.median()), "max": int(tokens.max())},
        "content_sha256": hashlib.sha256(lines.encode()).hexdigest(),
    }


def _portable_settings(settings: DatasetSettings) -> dict[str, Any]:
    """The settings as given, but absolute paths cut to their names: a manifest is the same on every machine."""
    values = settings.model_dump(mode="json")
    for key in ("path", "repo"):
        if values["source"].get(key):
            values["source"][key] = portable(values["source"][key])
    kind, colon, place = values["length"]["tokenizer"].partition(":")
    values["length"]["tokenizer"] = kind + colon + (portable(place) if place else "")
    return values
