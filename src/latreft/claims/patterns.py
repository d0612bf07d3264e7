"""Where in the network a 25% cut keeps neurons, by the scores records' kept share of each layer [Fig. 3c]."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import fmean

from latreft.records import RunRecord


def kept_by_layer(record: RunRecord, rule: str) -> list[float]:
    """Share of a layer's neurons that ``rule`` keeps, from the first layer on."""
    wanted = re.compile(rf"keep_{rule}_layer_(\d+)")
    found = {
        int(match[1]): metric.value for name, metric in record.metrics.items() if (match := wanted.fullmatch(name))
    }
    if sorted(found) != list(range(1, len(found) + 1)) or len(found) < 2:
        raise ValueError(
            f"scores of {record.dataset} {record.model.name}: no kept share of every layer by {rule}; score it anew"
        )
    return [found[layer] for layer in sorted(found)]


def late(kept: list[float]) -> float:
    """Mean kept share of the last third of the layers."""
    return fmean(kept[len(kept) - _third(kept) :])


def early_and_middle(kept: list[float]) -> float:
    """Mean kept share of the layers before the last third."""
    return fmean(kept[: len(kept) - _third(kept)])


def _third(kept: list[float]) -> int:
    return max(1, round(len(kept) / 3))


def act_grad_early_over_late(record: RunRecord) -> float:
    """What ActGrad keeps of early and middle layers, minus what it keeps of late ones."""
    kept = kept_by_layer(record, "act_grad")
    return early_and_middle(kept) - late(kept)


def late_act_diff_over_act_grad(record: RunRecord) -> float:
    """What ActDiff keeps of late layers, minus what ActGrad keeps of them."""
    return late(kept_by_layer(record, "act_diff")) - late(kept_by_layer(record, "act_grad"))


PATTERNS: dict[str, Callable[[RunRecord], float]] = {
    pattern.__name__: pattern for pattern in (act_grad_early_over_late, late_act_diff_over_act_grad)
}
"""What can be asked of scores, by name."""
