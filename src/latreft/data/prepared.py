"""Reading prepared splits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from latreft.files import check_manifest, sha256

if TYPE_CHECKING:
    import pandas as pd


def load_split(manifest_path: str | Path, split: str) -> pd.DataFrame:
    """Read one split (columns id, text, label, tokens) after checking that it is there and unchanged.

    Raises ``FileNotFoundError`` for a missing file and ``ValueError`` for an unknown split or other bytes than written.
    """
    import pandas as pd

    manifest = check_manifest(manifest_path)
    name = f"{split}.parquet"
    if name not in manifest["files"]:
        known = ", ".join(sorted(Path(file).stem for file in manifest["files"]))
        raise ValueError(f"{manifest_path} has no split '{split}'; it has {known}")
    path = Path(manifest_path).parent / name
    if sha256(path) != manifest["files"][name]:
        raise ValueError(
            f"{path} is not the file that {manifest_path} lists (other SHA-256); delete both to have them made again"
        )
    return pd.read_parquet(path)


def drawn(rows: pd.DataFrame, count: int, seed: int) -> pd.DataFrame:
    """``count`` of the rows, all if there are no more, drawn without replacement and in the order drawn."""
    import torch

    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows.iloc[order[:count].tolist()]
