"""Publish the results of a scale: ``python tools/publish.py SCALE`` makes ``published/SCALE``; see docs/evidence.md."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.cli import one_line_errors  # noqa: E402
from latreft.published import front_page  # noqa: E402
from latreft.published.publish import publish  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1, and nothing changed, where results are missing or do not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale")
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder that holds SCALE (results)")
    parser.add_argument("--out", type=Path, default=ROOT / "published", help="where SCALE is made (published)")
    parser.add_argument("--partial", action="store_true", help="publish what is there; the README says what is missing")
    given = parser.parse_args()
    missing = publish(ROOT, given.scale, given.results.resolve(), given.out.resolve(), given.partial)
    if given.out.resolve() == ROOT / "published":
        front_page.update(ROOT, given.scale)
    print(f"published {given.out / given.scale}" + (f"; {len(missing)} files are missing" if missing else ""))


main()
