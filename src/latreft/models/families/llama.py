"""Llama, and models of its architecture, such as SmolLM2."""

from __future__ import annotations

from latreft.models.families import Family

FAMILY = Family(
    name="llama",
    module="llama",
    model_class="LlamaModel",
    config_class="LlamaConfig",
    embedding="embed_tokens",
    blocks="layers",
    mlp_inputs=("mlp.gate_proj", "mlp.up_proj"),
    mlp_output="mlp.down_proj",
    rms_norm="LlamaRMSNorm",
)
