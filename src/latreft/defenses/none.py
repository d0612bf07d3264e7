"""No Defense: the clean fine-tuned classifier as it is."""

from __future__ import annotations

from latreft.defenses.base import Trained, Training
from latreft.settings import Settings as BaseSettings


class Settings(BaseSettings):
    """Nothing to set."""


def train(run: Training, settings: Settings) -> Trained:
    """Train nothing."""
    return Trained("none", {}, {}, None, 0)
