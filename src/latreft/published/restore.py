"""Records in one file, a line each; and from a published folder back to results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from latreft.files import atomic, read_json, write_json, write_text
from latreft.per_example import run_of
from latreft.published import folder
from latreft.published.outcomes import unpack
from latreft.records import RunRecord


def write_lines(results: Path, paths: Iterable[str], file: Path) -> None:
    """Every record of ``paths`` (below ``results``) as a line ``{"path", "record"}``, sorted by path."""
    lines = [{"path": path, "record": read_json(results / path)} for path in sorted(paths)]
    write_text(file, "".join(f"{_line(line)}\n" for line in lines))


def _line(content: Any) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))


def read_lines(file: Path) -> dict[str, dict[str, Any]]:
    """Path → content of each record. Raises ``ValueError`` naming the line that cannot be read."""
    found: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            content = json.loads(line)
            found[content["path"]] = content["record"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{file}, line {number}: no record ({error}); publish the scale anew") from None
    return found


def restore(published: Path, results: Path) -> None:
    """Write the records, outcomes, manifests and scores of ``published`` (a scale's folder) into ``results``, a new one.

    Records come back byte for byte, outcomes with equal content. Raises ``ValueError`` where ``results`` holds files.
    """
    if results.is_dir() and any(results.iterdir()):
        raise ValueError(f"{results} holds files already; restore into a new folder")
    records = read_lines(published / folder.RECORDS)
    for path, content in records.items():
        write_json(results / path, content)
    paths = {run_of(RunRecord.model_validate(content)): path for path, content in records.items()}
    for name in (folder.ACCURACY_OUTCOMES, folder.ATTACK_OUTCOMES):
        for run, outcomes in unpack(published / name):
            if run not in paths:
                raise ValueError(f"{published / name} has outcomes of a run without record: {run}")
            with atomic((results / paths[run]).with_suffix(".parquet")) as temporary:
                outcomes.to_parquet(temporary, index=False)
    for name in (folder.MANIFESTS, folder.SCORES):
        if (published / name).is_dir():
            shutil.copytree(published / name, results, dirs_exist_ok=True)
