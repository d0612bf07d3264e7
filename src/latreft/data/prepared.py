"""Reading prepared splits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from latreft.files import check_manifest, read_json

if TYPE_CHECKING:
    import pandas as pd


def load_split(manifest_path: str | Path, split: str) -> pd.DataFrame:
    """Read one split (columns id, text, label, tokens) after checking that it is there and unchanged.

    Raises ``FileNotFoundError`` for a missing file and ``ValueError`` for an unknown split or other bytes than written.
    """
    import pandas as pd

    name, listed = f"{split}.parquet", read_json(manifest_path)["files"]
    if name not in listed:
        known = ", ".join(sorted(Path(file).stem for file in listed))
        raise ValueError(f"{manifest_path} has no split '{split}'; it has {known}")
    check_manifest(manifest_path, name)
    return pd.read_parquet(Path(manifest_path).parent / name)


def drawn(rows: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """``count`` of the rows, all if there are no more, drawn without replacement and in the order drawn."""
    import torch

    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows.iloc[order[:count].tolist()]
