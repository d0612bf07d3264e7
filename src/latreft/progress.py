"""Progress of long steps: a bar on a terminal, plain log lines elsewhere, each with the loss and the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tqdm import tqdm


class ProgressReport:
    """Reports ``done`` of ``total``: a bar on a terminal, else a line at most every ``every`` seconds and at the end.

    The lines also go to the file ``log``, where one is given.
    """

    def __init__(
        self, label: str, unit: str, *, every: float = 20.0, stream: TextIO | None = None, log: Path | None = None
    ):
        self.label, self.unit, self.every, self.log = label, unit, every, log
        self.stream = sys.stderr if stream is None else stream
        self.bar: tqdm | None = None
        self.started = self.spoken = time.monotonic()
        self.first: int | None = None

    def update(self, done: int, total: int, values: Mapping[str, float] | None = None) -> None:
        """Say that ``done`` of ``total`` are done; ``values`` are shown beside (the loss, say)."""
        shown = {name: f"{value:.4g}" for name, value in (values or {}).items()}
        if self.first is None:
            self.first = done - 1
        if self.stream.isatty():
            self._bar(done, total, shown)
        if time.monotonic() - self.spoken >= self.every or done >= total:
            self._line(done, total, shown)

    def _bar(self, done: int, total: int, shown: Mapping[str, str]) -> None:
        if self.bar is None:
            self.bar = tqdm(total=total, initial=done - 1, desc=self.label, unit=self.unit, file=self.stream)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(done - self.bar.n)
        if done >= total:
            self.bar.close()

    def _line(self, done: int, total: int, shown: Mapping[str, str]) -> None:
        now = self.spoken = time.monotonic()
        assert self.first is not None
        left = (now - self.started) / max(1, done - self.first) * (total - done)
        parts = [f"{self.label}: {done}/{total} {self.unit}", *(f"{name} {value}" for name, value in shown.items())]
        parts.append(f"{tqdm.format_interval(left)} left" if done < total else f"{now - self.started:.1f} s")
        line = ", ".join(parts)
        if not self.stream.isatty():
            print(line, file=self.stream, flush=True)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as handle:
                handle.write(line + "\n")
