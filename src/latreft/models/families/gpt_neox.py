"""GPT-NeoX, the architecture of Pythia."""

from __future__ import annotations

from latreft.models.families import Family

FAMILY = Family(
    name="gpt_neox",
    module="gpt_neox",
    model_class="GPTNeoXModel",
    config_class="GPTNeoXConfig",
    embedding="embed_in",
    blocks="layers",
    mlp_inputs=("mlp.dense_h_to_4h",),
    mlp_output="mlp.dense_4h_to_h",
)
