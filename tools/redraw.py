"""Rebuild all that is made from published evidence and compare: ``python tools/redraw.py SCALE``; no GPU is needed.

Nothing under ``results`` or ``figures`` is touched: everything is rebuilt in a copy of the project.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.artefacts import RESULTS  # noqa: E402
from latreft.cli import one_line_errors  # noqa: E402
from latreft.published import folder, front_page  # noqa: E402
from latreft.published.compare import Difference, compare, unlike  # noqa: E402
from latreft.published.configured import other_setting  # noqa: E402
from latreft.published.facts import with_count_of  # noqa: E402
from latreft.published.folder import CONFIG, MANIFESTS, RECORDS, SCORES  # noqa: E402
from latreft.published.manifests import check_manifests  # noqa: E402
from latreft.published.rates import check_rates  # noqa: E402
from latreft.published.redraw import build, changed_settings, working_copy  # noqa: E402
from latreft.published.restore import read_lines  # noqa: E402
from latreft.published.results import describe, page_of  # noqa: E402
from latreft.records import RunRecord  # noqa: E402


@one_line_errors()
def main() -> None:
    """Exit code 1 where anything but a picture differs from what was published; pictures are reported only."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scale")
    parser.add_argument(
        "--published", type=Path, default=ROOT / "published", help="folder that holds SCALE (published)"
    )
    parser.add_argument("--into", type=Path, help="a new folder to rebuild in and keep (a temporary one without)")
    given = parser.parse_args()
    evidence = folder.evidence(given.published, given.scale)
    copy = given.into.resolve() if given.into else Path(tempfile.mkdtemp(prefix=f"redraw-{given.scale}-"))
    keep = given.into is not None
    try:
        differences = redraw(evidence, copy)
        keep |= bool(differences)
    finally:
        if not keep:
            shutil.rmtree(copy)
    if keep:
        print(f"rebuilt in {copy}: results/{given.scale}, figures, published/{given.scale}")
    if any(difference.grave for difference in differences):
        raise SystemExit(1)


def redraw(evidence: Path, copy: Path) -> list[Difference]:
    """Rebuild ``evidence`` in ``copy``, say what was found, and return what is not as it was published."""
    working_copy(ROOT, evidence, copy)
    for name in changed_settings(ROOT, evidence):
        print(f"note: {name} has changed since it was published; the published one is used")
    records = {path: RunRecord.model_validate(record) for path, record in read_lines(evidence / RECORDS).items()}
    print(check_manifests(evidence / MANIFESTS, evidence / SCORES, records))
    checked = check_rates(copy / RESULTS.format(scale=evidence.name))
    print(f"{checked.metrics} metrics of {checked.runs} runs agree with their examples")
    results = build(copy, evidence.name)
    page = page_of(evidence)
    describe(results, copy, with_count_of(page or "", checked), page)
    names, differences = compare(evidence, copy)
    print(f"{len(names) - len(differences)} of {len(names)} files are as they were published")
    own = evidence.parent == ROOT / "published"  # the front page shows no other folder's table
    front = front_page.current(ROOT, evidence.name, evidence) if own else None
    if front is not None and (why := unlike(".md", (ROOT / "README.md").read_bytes(), front.encode())):
        differences.append(Difference("the project's README.md", why))
    other = other_setting(results.plans, results.records)
    if other is None:
        print(f"{len(results.records)} records have the settings of the published configuration")
    else:
        differences.append(Difference(CONFIG, other))
    for difference in differences:
        print(f"{'error' if difference.grave else 'note'}: {difference}")
    return differences


main()
