"""Files that are either whole or absent: atomic writes, checksums, manifests."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path``; on success it is synced and renamed to ``path``, on failure removed.

    A reader never sees a half-written file, whatever kills the writer.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` (UTF-8) atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as sorted, indented JSON, atomically; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; a damaged file is an error that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); delete it and rerun the rule that makes it") from None


def sha256(path: str | Path) -> str:
    """Hex SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def fingerprint(value: Any) -> str:
    """Hex SHA-256 of a JSON-able value, independent of key order."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def check_manifest(manifest: str | Path, *names: str) -> dict[str, Any]:
    """Read a manifest and check that the files it lists (``files: {name: sha256}``) are there and unchanged.

    With ``names`` only those are checked: reading one of many, a job need not read all. Records credit what a job read
    to the manifest's own SHA-256, so other bytes than it lists must not be used. Raises ``FileNotFoundError`` for a
    missing file and ``ValueError`` for a changed one, naming the file and the manifest.
    """
    manifest = Path(manifest)
    content: dict[str, Any] = read_json(manifest)
    listed: dict[str, str] = content.get("files", {})
    for name in names or listed:
        path = manifest.parent / name
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} is listed in {manifest} but missing; delete the manifest to have it made again"
            )
        found = sha256(path)
        if found != listed[name]:
            raise ValueError(
                f"{path} is not the file that {manifest} lists: its SHA-256 is {found[:12]}, right is "
                f"{listed[name][:12]}; put the file back, or delete both to have them made again"
            )
    return content


def remove_with_empty_folders(path: Path) -> None:
    """Remove a file if it is there, and each folder above it that is empty then, up to one that is not."""
    path.unlink(missing_ok=True)
    for folder in path.parents:
        try:
            folder.rmdir()
        except OSError:
            return
