"""Finished examples of an attack, one JSON line each, so that a killed run continues where it stopped."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path

from latreft.attacks.base import Outcome
from latreft.files import write_text

log = logging.getLogger(__name__)


class Journal:
    """The journal at ``path``. Its first line holds the fingerprint of what is run.

    A journal of another fingerprint is discarded, and so is all from a line that was not written whole. ``done`` maps
    the ids of finished examples to their outcomes. The caller removes the file once the results are published.
    """

    def __init__(self, path: str | Path, fingerprint: str):
        self.path = Path(path)
        self.done = {outcome.id: outcome for outcome in _read(self.path, fingerprint)}
        lines = [json.dumps({"fingerprint": fingerprint}), *map(_line, self.done.values())]
        write_text(self.path, "\n".join(lines) + "\n")

    def append(self, outcome: Outcome) -> None:
        """Add one finished example; it is on disk when this returns."""
        self.done[outcome.id] = outcome
        with self.path.open("a", encoding="utf-8") as handle:
            handle.write(_line(outcome) + "\n")
            handle.flush()
            os.fsync(handle.fileno())


def _line(outcome: Outcome) -> str:
    return json.dumps(asdict(outcome), allow_nan=False)


def _outcome(line: str) -> Outcome:
    values = json.loads(line)
    return Outcome(**values | {"attack_tokens": tuple(values["attack_tokens"])})


def _read(path: Path, fingerprint: str) -> list[Outcome]:
    if not path.exists():
        return []
    first, *lines = path.read_text(encoding="utf-8", errors="replace").rstrip("\n").split("\n")
    try:
        known = json.loads(first)["fingerprint"]
    except (ValueError, TypeError, KeyError):
        known = None
    if known != fingerprint:
        log.warning("%s is the journal of another run (settings, data or model changed); starting anew", path)
        return []
    outcomes: list[Outcome] = []
    for line in lines:
        try:
            outcomes.append(_outcome(line))
        except (ValueError, TypeError, KeyError):
            log.warning("%s: line %d is not whole; going on after example %d", path, len(outcomes) + 2, len(outcomes))
            break
    return outcomes
