"""What the command line shows of an error: one line for what the user can put right, the traceback for the rest."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn bad settings, bad values and file errors into ``error: …`` on stderr and exit code 1.

    For ``with one_line_errors():`` and as the decorator ``@one_line_errors()``. ``SettingsError`` is a ``ValueError``;
    any other exception is a fault of the program and keeps its traceback.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", file=sys.stderr)
        raise SystemExit(1) from None
