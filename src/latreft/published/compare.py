"""Published files against those made anew from the evidence: which differ, and where first."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from latreft.published import folder

PICTURES = (".pdf", ".png")
SHOWN = 60
"""Characters of a line that are shown where two differ."""


@dataclass(frozen=True)
class Difference:
    """A file that was redrawn otherwise than it was published."""

    path: str
    why: str

    @property
    def grave(self) -> bool:
        """Text must be equal; a picture may be rendered otherwise elsewhere."""
        return Path(self.path).suffix not in PICTURES

    def __str__(self) -> str:
        return f"{self.path}: {self.why}"


def compare(published: Path, copy: Path) -> tuple[list[str], list[Difference]]:
    """Every file that was published or redrawn, and those of them that differ.

    JSON is compared by its content, all else byte for byte.
    """
    names: list[str] = []
    differences: list[Difference] = []
    for entry, place in folder.built(published.name).items():
        old, new = _files(published / entry), _files(copy / place)
        for below in sorted(set(old) | set(new)):
            name = str(Path(entry) / below)
            names.append(name)
            if below not in new:
                differences.append(Difference(name, "published, but not made by the redraw"))
            elif below not in old:
                differences.append(Difference(name, "made by the redraw, but not published"))
            elif why := unlike(Path(name).suffix, old[below].read_bytes(), new[below].read_bytes()):
                differences.append(Difference(name, why))
    return names, differences


def _files(place: Path) -> dict[str, Path]:
    """Files by their path below ``place``; a file is itself, below nothing."""
    if place.is_file():
        return {".": place}
    return {str(path.relative_to(place)): path for path in sorted(place.rglob("*")) if path.is_file()}


def unlike(suffix: str, old: bytes, new: bytes) -> str | None:
    """How the published ``old`` differs from the redrawn ``new``, in words; ``None`` where they are equal."""
    if old == new:
        return None
    if suffix in PICTURES:
        return "differs"
    before, after = (each.decode("utf-8", errors="backslashreplace") for each in (old, new))
    if suffix != ".json":
        return first_line(before, after)
    try:
        return first_key(json.loads(before), json.loads(after))
    except json.JSONDecodeError as error:
        return f"is not valid JSON ({error})"


def first_line(old: str, new: str) -> str:
    """The first line in which two different texts differ."""
    lines = zip_longest(old.split("\n"), new.split("\n"))
    number, (before, after) = next((n, pair) for n, pair in enumerate(lines, 1) if pair[0] != pair[1])
    if before is None or after is None:
        return f"differs in line {number}: the {'published' if before is None else 'redrawn'} file ends before it"
    at = next(i for i, pair in enumerate(zip_longest(before, after)) if pair[0] != pair[1])
    return f"differs in line {number}: {_part(before, at)} is published, {_part(after, at)} redrawn"


def _part(line: str, at: int) -> str:
    """The part of a line around its character ``at``."""
    start, end = max(0, at - SHOWN // 2), at + SHOWN // 2
    return repr(f"{'…' * (start > 0)}{line[start:end]}{'…' * (end < len(line))}")


def first_key(old: Any, new: Any, key: str = "") -> str | None:
    """The first key, in the order of names, under which two JSON values differ; ``None`` where they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            place = f"{key} > {name}" if key else name
            if name not in new:
                return f"differs in {place}: published, but not redrawn"
            if name not in old:
                return f"differs in {place}: redrawn, but not published"
            if why := first_key(old[name], new[name], place):
                return why
        return None
    before, after = (json.dumps(each, sort_keys=True, ensure_ascii=False) for each in (old, new))
    if before == after:
        return None
    return f"differs{f' in {key}' if key else ''}: {_part(before, 0)} is published, {_part(after, 0)} redrawn"
