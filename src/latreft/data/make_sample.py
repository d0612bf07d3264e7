"""Draw the committed samples in resources/sample from the full data sets; the README there says how to run this.

From the cleaned training and validation rows, texts of 100 to 220 GPT-2 tokens whose letters no other drawn text has,
the first of the seeded order, equally many of each class.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from latreft.cli import one_line_errors
from latreft.data.cleaning import NOT_LETTERS, clean
from latreft.data.lengths import LengthCounter, length_counter
from latreft.data.settings import ParquetSource
from latreft.data.sources import SAMPLES, SPLITS, from_parquet
from latreft.data.splits import carve_validation, shuffled
from latreft.files import atomic

if TYPE_CHECKING:
    import pandas as pd

SEED = 42
MIN_TOKENS, MAX_TOKENS = 100, 220
IMDB = ParquetSource(
    kind="parquet", path="imdb.parquet", split_column="split", validation_value="test", citation="Maas et al., 2011"
)
ENRON = ParquetSource(kind="parquet", path="enron_spam.parquet", citation="Metsis et al., 2006")
ROWS = {"imdb": {"train": 900, "validation": 200}, "enron_spam": {"train": 560, "validation": 140}}
LABELS = {"imdb": ("negative", "positive"), "enron_spam": ("ham", "spam")}
ENRON_VALIDATION_SHARE = 0.2


def draw(name: str, source: ParquetSource, full: Path, counter: LengthCounter) -> pd.DataFrame:
    """The sample of one data set: columns id, split, text, label, in seeded order."""
    import pandas as pd

    raw, _ = from_parquet(source, LABELS[name], full)
    rows, _ = clean(raw, counter.count, MIN_TOKENS, MAX_TOKENS)
    if not source.has_validation:
        rows = carve_validation(rows, ENRON_VALIDATION_SHARE, SEED)
    letters = rows["text"].map(lambda text: NOT_LETTERS.sub("", text.casefold()))
    rows = rows[~letters.duplicated(keep=False)]
    drawn = []
    for split in SPLITS:
        order = shuffled(rows[rows["split"] == split], SEED, "sample")
        half = ROWS[name][split] // 2
        drawn += [order[order["label"] == label].head(half) for label in (0, 1)]
    return shuffled(pd.concat(drawn), SEED, "sample")[["id", "split", "text", "label"]]


def write_sample(path: Path, frame: pd.DataFrame) -> None:
    """Write a sample as small parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({column: frame[column].tolist() for column in frame.columns})
    with atomic(path) as temporary:
        pq.write_table(table, temporary, compression="zstd", compression_level=19)


@one_line_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """Command line: ``python -m latreft.data.make_sample FOLDER [--tokenizer SPEC] [--out FOLDER]``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("full", type=Path, help="folder with imdb.parquet and enron_spam.parquet")
    parser.add_argument(
        "--tokenizer", default="gpt2", help="counts the tokens; 'bpe:FOLDER' where 'gpt2' cannot be had"
    )
    parser.add_argument("--out", type=Path, default=SAMPLES)
    options = parser.parse_args(arguments)
    counter = length_counter(options.tokenizer, Path.cwd())
    for name, source in (("imdb", IMDB), ("enron_spam", ENRON)):
        write_sample(options.out / f"{name}.parquet", draw(name, source, options.full, counter))


if __name__ == "__main__":
    main()
