"""The same seed gives the same numbers on one device."""

from __future__ import annotations

import os

import torch


def deterministic(wanted: bool = True) -> None:
    """Have torch use deterministic kernels only; an operation without one is an error of torch's that names it.

    A mere warning would not do: attention's backward pass then stays with atomic additions. Without the debugging aid
    that fills new memory. Not ``wanted``: any kernels.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
