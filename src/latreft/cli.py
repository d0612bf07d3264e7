"""What the command line and a job's log show of errors and warnings: one line each, the traceback for a program's fault."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any

# How the writers of tensors (torch, safetensors) say that the disk took no more; the system's own errors are OSErrors.
UNWRITABLE = ("No space left on device", "Disk quota exceeded", "iostream error", "inline_container.cc")


def note(text: str, log: str | Path | None) -> None:
    """Add ``text`` to a job's log file, if there is one.

    A log that cannot be written stops nothing: a full disk must not hide the error that says so.
    """
    if log is not None:
        with suppress(OSError), Path(log).open("a", encoding="utf-8") as handle:
            handle.write(text.rstrip("\n") + "\n")


def say(message: str, log: str | Path | None) -> None:
    """One line to the terminal, and to a job's log file, if there is one."""
    print(message, file=sys.stderr, flush=True)
    note(message, log)


def _unwritable(error: BaseException | None) -> str | None:
    """What a library said of a file that could not be written, where ``error`` or what led to it is of that kind."""
    while error is not None:
        text = " ".join(str(error).split())
        if any(words in text for words in UNWRITABLE):
            return text
        error = error.__context__
    return None


@contextmanager
def one_line_errors(log: str | Path | None = None) -> Iterator[None]:
    """Turn bad settings, bad values and file errors into ``error: …`` on stderr and exit code 1.

    For ``with one_line_errors():`` and as the decorator ``@one_line_errors()``. ``SettingsError`` is a ``ValueError``;
    any other exception is a fault of the program and keeps its traceback, unless it is a full disk in disguise. What is
    said, the traceback too, goes to the file ``log`` as well.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        say(f"error: {' '.join(str(error).split()) or type(error).__name__}", log)
        raise SystemExit(1) from None
    except SystemExit as stop:  # with a message: the state was saved on SIGTERM
        if isinstance(stop.code, str):
            note(stop.code, log)
        raise
    except Exception as error:
        said = _unwritable(error)
        if said is None:
            note(traceback.format_exc(), log)
            raise
        say(
            f"error: a file could not be written ({said}); if its disk is full (No space left on device) or over "
            "quota, make room and run again: long jobs go on from where they were",
            log,
        )
        raise SystemExit(1) from None


class _Warnings(logging.Handler):
    """Says what reaches the root logger as a warning or worse, in one line (transformers and torch keep theirs for stderr)."""

    def __init__(self, log: Path):
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            say(f"{record.levelname.lower()}: {' '.join(record.getMessage().split())}", self.log)
        except Exception:
            self.handleError(record)


@contextmanager
def _warnings(log: Path) -> Iterator[None]:
    """Within the context warnings, those of ``warnings`` too, are said on stderr and in ``log``."""
    root, handler = logging.getLogger(), _Warnings(log)
    root.addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)


def job_script(main: Callable[[Any], None]) -> Callable[[Any], None]:
    """Decorates ``main`` of a rule's script: the job's log begins anew, and tells of warnings and of what stopped it.

    Snakemake names that file when a job fails, and on a cluster it is all that is left of one.
    """

    @wraps(main)
    def run(snakemake: Any) -> None:
        log = Path(snakemake.log[0])
        with one_line_errors(log), _warnings(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text("", encoding="utf-8")
            main(snakemake)

    return run
