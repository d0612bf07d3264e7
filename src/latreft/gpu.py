"""One job, one GPU: a lock for each job that a card may run, taken before CUDA starts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

from filelock import FileLock, Timeout

from latreft.settings import SettingsError

# CUDA reads CUDA_VISIBLE_DEVICES once, when it starts. Asked without this, torch starts it to count the cards, and the
# choice of a card comes too late: every job would run on the first one.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def visible_cards() -> list[str]:
    """The cards this process may use, as CUDA_VISIBLE_DEVICES names them; empty without a GPU."""
    import torch

    count = torch.cuda.device_count()  # through NVML: CUDA is not started
    if count == 0:
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [card.strip() for card in named.split(",") if card.strip()]
    return [str(index) for index in range(count)]


@contextmanager
def one_card(locks: Path | None = None, poll_seconds: float = 1.0, jobs: int = 1) -> Iterator[str]:
    """Hold one of the visible cards, alone or as one of at most ``jobs``; CUDA sees no other within the context.

    Cards that no job runs on are taken first.

    A scheduler's own choice of one card is kept as it is. Waits while every card is held by another job of this host,
    or of the same SLURM job: within each of those the cards may be numbered anew.
    """
    cards = visible_cards()
    if not cards:
        raise SettingsError(
            "device is 'cuda', but no GPU is visible; set device to 'cpu' or 'auto', or check the driver"
        )
    allocation = os.environ.get("SLURM_JOB_ID", "")
    folder = locks or Path(tempfile.gettempdir()) / f"latreft-gpu-{os.getuid()}{allocation and '-' + allocation}"
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        for place, card in product(range(jobs), cards):
            lock = FileLock(folder / f"{card.replace('/', '_')}{f'-{place}' if place else ''}.lock")
            try:
                with lock.acquire(timeout=0):
                    os.environ["CUDA_VISIBLE_DEVICES"] = card
                    yield card
                    return
            except Timeout:
                continue
        time.sleep(poll_seconds)
