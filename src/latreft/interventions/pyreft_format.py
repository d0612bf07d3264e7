"""Export of a trained edit to pyreft's own state and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from latreft.interventions.reft import LoReFT


def to_pyreft(reft: LoReFT) -> dict[str, Tensor]:
    """The state that ``pyreft.LoreftIntervention.load_state_dict`` reads: W, b and R transposed."""
    weights = reft.weights()
    return {"weight": weights["weight"], "bias": weights["bias"], "rotate_layer": weights["rotation"]}


def from_pyreft(state: Mapping[str, Tensor]) -> LoReFT:
    """The edit with the weights of a pyreft ``LoreftIntervention`` state."""
    missing = {"weight", "bias", "rotate_layer"} - set(state)
    if missing:
        raise ValueError(f"not a pyreft LoReFT state: {', '.join(sorted(missing))} missing, found {sorted(state)}")
    return LoReFT.from_weights(
        {"weight": state["weight"], "bias": state["bias"], "rotation": state["rotate_layer"]},
    )


def pyreft_intervention(reft: LoReFT) -> Any:
    """A ``pyreft.LoreftIntervention`` with equal outputs."""
    import pyreft

    intervention = pyreft.LoreftIntervention(
        embed_dim=reft.source.in_features, low_rank_dimension=reft.rank, dtype=reft.source.weight.dtype
    )
    intervention.load_state_dict(to_pyreft(reft))
    return intervention
