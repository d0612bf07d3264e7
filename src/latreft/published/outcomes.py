"""Per-example outcomes of many runs in one parquet file, and back again, with nothing lost.

A run's rows lie together, in their own order, behind columns that say which run it is. Losses that are float32, as
models compute them, are stored so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from latreft.files import atomic
from latreft.per_example import Run

if TYPE_CHECKING:
    import pandas as pd

LEVEL = 12
"""Of zstd: higher ones take far longer for little."""


def pack(runs: Iterable[tuple[Run, Path]], path: Path) -> None:
    """Write the outcomes of ``runs``, each from its own parquet file, into ``path``; equal runs give equal bytes.

    Without runs no file is written. Raises ``ValueError`` where the files have different columns.
    """
    tables = [_with_run(run, pq.read_table(source)) for run, source in runs]
    if not tables:
        return
    table = _narrowed(pa.concat_tables(tables).unify_dictionaries())
    losses = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    others = [name for name in table.column_names if name not in losses and name != "attack_tokens"]
    with atomic(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            compression_level=LEVEL,
            use_dictionary=others,
            use_byte_stream_split=losses,
        )


def unpack(path: Path) -> Iterator[tuple[Run, pd.DataFrame]]:
    """Each run with its outcomes as they were before packing; nothing where there is no file."""
    if not path.is_file():
        return
    table = pq.read_table(path).combine_chunks()
    for start, end in pairwise(_starts(table)):
        rows = table.slice(start, end - start)
        run = Run(*(rows[name][0].as_py() for name in Run._fields))
        yield run, _widened(rows.drop_columns(list(Run._fields))).to_pandas()


def _with_run(run: Run, outcomes: pa.Table) -> pa.Table:
    """The outcomes with the run's columns in front; texts become dictionaries."""
    columns: dict[str, Any] = {}
    for name, value in zip(Run._fields, run, strict=True):
        if name == "seed":
            columns[name] = pa.array(np.full(len(outcomes), value, dtype=np.int64))
        else:
            columns[name] = pa.DictionaryArray.from_arrays(np.zeros(len(outcomes), dtype=np.int32), [value])
    for field in outcomes.schema:
        column = outcomes[field.name].combine_chunks()
        text = pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
        columns[field.name] = column.cast(pa.string()).dictionary_encode() if text else column
    return pa.table(columns)


def _narrowed(table: pa.Table) -> pa.Table:
    """float64 columns as float32, where no value changes by that."""
    for place, field in enumerate(table.schema):
        if pa.types.is_float64(field.type):
            narrow = table[field.name].cast(pa.float32(), safe=False)
            if narrow.cast(pa.float64()).equals(table[field.name]):
                table = table.set_column(place, field.name, narrow)
    return table


def _widened(table: pa.Table) -> pa.Table:
    """Texts and losses in the types that jobs write."""
    for place, field in enumerate(table.schema):
        if pa.types.is_floating(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(pa.float64()))
        if pa.types.is_dictionary(field.type):
            table = table.set_column(place, field.name, table[field.name].cast(pa.string()))
    return table


def _starts(table: pa.Table) -> list[int]:
    """The rows at which a run begins, and the end of the table."""
    new = np.zeros(len(table), dtype=bool)
    new[:1] = True
    for name in Run._fields:
        column = table[name].combine_chunks()
        codes = (column.indices if pa.types.is_dictionary(column.type) else column).to_numpy()
        new[1:] |= codes[1:] != codes[:-1]
    return [*np.flatnonzero(new).tolist(), len(table)]
