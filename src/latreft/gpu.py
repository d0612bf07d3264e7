"""One job, one GPU: a lock for each job that a card may run, taken before CUDA starts."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

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


def _held(path: Path) -> bool:
    """Whether some job holds the lock."""
    try:
        with FileLock(path).acquire(timeout=0):
            return False
    except Timeout:
        return True


def _take(folder: Path, cards: list[str], jobs: int) -> tuple[str, BaseFileLock] | None:
    """A lock on the card that the fewest jobs run on, of those that have room for one of ``jobs``; None if none has.

    A card has a lock ``CARD.alone.lock`` for a job alone, and one ``CARD.N.lock`` for each that shares it.
    """
    room = []
    for place, card in enumerate(cards):
        name = card.replace("/", "_")
        held = {path.name for path in folder.iterdir() if path.name.startswith(f"{name}.") and _held(path)}
        if not held or (jobs > len(held) and f"{name}.alone.lock" not in held):
            slots = ["alone"] if jobs == 1 else [str(slot) for slot in range(jobs)]
            free = next(slot for slot in slots if f"{name}.{slot}.lock" not in held)
            room.append((len(held), place, folder / f"{name}.{free}.lock"))
    if not room:
        return None
    _, place, path = min(room)
    lock = FileLock(path)
    lock.acquire(timeout=0)
    return cards[place], lock


@contextmanager
def one_card(locks: Path | None = None, poll_seconds: float = 1.0, jobs: int = 1) -> Iterator[str]:
    """Hold one of the visible cards, alone or as one of at most ``jobs``; CUDA sees no other within the context.

    The card that the fewest jobs run on is taken. A scheduler's own choice of one card is kept as it is. Waits while no
    card has room, for the other jobs of this host, or of the same SLURM job: within each of those the cards may be
    numbered anew.
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
        with FileLock(folder / "choosing.lock"):
            taken = _take(folder, cards, jobs)
        if taken is not None:
            break
        time.sleep(poll_seconds)
    card, lock = taken
    try:
        os.environ["CUDA_VISIBLE_DEVICES"] = card
        yield card
    finally:
        lock.release()
