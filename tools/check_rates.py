"""Recompute every rate from its examples: ``python tools/check_rates.py published/SCALE`` (or ``results/SCALE``)."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.cli import one_line_errors  # noqa: E402
from latreft.published.folder import RECORDS  # noqa: E402
from latreft.published.rates import check_rates  # noqa: E402
from latreft.published.restore import restore  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1 at the first metric that is not that of its examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        results, published = folder, (folder / RECORDS).is_file()
        if published:  # outcomes are packed there: their files, written anew, are other bytes of equal content
            results = Path(temporary)
            restore(folder, results)
        checked = check_rates(results)
    print(
        f"{folder}: {checked.metrics} metrics of {checked.runs} runs agree with their examples"
        + ("" if published else f"; {checked.same_hash} files of outcomes have the SHA-256 that their record names")
    )


main()
