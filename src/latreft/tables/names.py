"""Names as readers know them. A name that is not here is shown as it is configured."""

from __future__ import annotations

METHODS = {
    "none": "No defense",
    "r2d2": "R2D2",
    "lat": "LAT",
    "cat": "CAT",
    "lat_reft": "LAT-ReFT",
    "finetune": "Clean fine-tuning",
}
ATTACKS = {
    "gcg": "GCG",
    "random_token": "RandomToken",
    "prefix_gcg": "Prefix GCG",
    "gcg_tuning": "GCG",
    "gcg_strong": "Stronger GCG",
    "gcg_25": "25-token GCG",
    "gcg_40": "40-token GCG",
}
RULES = {
    "random": "Random",
    "act_diff": "ActDiff",
    "act_grad": "ActGrad",
    "random_matched": "Random, ActGrad's layer budget",
    "act_grad_uniform": "ActGrad, equal layer budget",
}
LEDGERS = {
    "cost_paper_flops_per_example": "paper's formulas",
    "cost_uniform_flops_per_example": "uniform rule",
    "cost_measured_flops_per_example": "measured",
}
"""The three cost ledgers, in the order in which they are shown."""
