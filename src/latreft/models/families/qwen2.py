"""Qwen2 and Qwen2.5."""

from __future__ import annotations

from latreft.models.families import Family

FAMILY = Family(
    name="qwen2",
    module="qwen2",
    model_class="Qwen2Model",
    config_class="Qwen2Config",
    embedding="embed_tokens",
    blocks="layers",
    mlp_inputs=("mlp.gate_proj", "mlp.up_proj"),
    mlp_output="mlp.down_proj",
    rms_norm="Qwen2RMSNorm",
)
