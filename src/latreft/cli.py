"""What the command line shows of an error: one line for what the user can put right, the traceback for the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

# How the writers of tensors (torch, safetensors) say that the disk took no more; the system's own errors are OSErrors.
UNWRITABLE = ("No space left on device", "Disk quota exceeded", "iostream error", "inline_container.cc")


def _unwritable(error: BaseException | None) -> str | None:
    """What a library said of a file that could not be written, where ``error`` or what led to it is of that kind."""
    while error is not None:
        text = " ".join(str(error).split())
        if any(words in text for words in UNWRITABLE):
            return text
        error = error.__context__
    return None


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn bad settings, bad values and file errors into ``error: …`` on stderr and exit code 1.

    For ``with one_line_errors():`` and as the decorator ``@one_line_errors()``. ``SettingsError`` is a ``ValueError``;
    any other exception is a fault of the program and keeps its traceback, unless it is a full disk in disguise.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        raise SystemExit(1) from None
    except Exception as error:
        said = _unwritable(error)
        if said is None:
            raise
        print(
            f"error: a file could not be written ({said}); if its disk is full (No space left on device) or over "
            "quota, make room and run again: long jobs go on from where they were",
            file=sys.stderr,
        )
        raise SystemExit(1) from None
