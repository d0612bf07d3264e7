"""The same seed gives the same numbers on one device."""

from __future__ import annotations

import os

import torch


def deterministic() -> None:
    """Ask torch for deterministic kernels, where it has them; without the debugging aid that fills new memory."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cuda.enable_cudnn_sdp(False)  # its backward is deterministic only without warn_only
    torch.backends.cudnn.benchmark = False
