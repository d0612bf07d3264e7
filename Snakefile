# The whole reproduction as one DAG. A target's path says its scale:
#   figures/placement.pdf            the paper's models and data
#   figures/smoke/placement.pdf      tiny models on a laptop
# Named targets (all, tables, figures, heatmaps, claims, and every table and figure by its own name) concern the scale of
# `--config scale=NAME`, the paper scale without it.
import sys
from pathlib import Path

from snakemake.utils import min_version

min_version("9.0")

ROOT = Path(workflow.basedir)
sys.path.insert(0, str(ROOT / "src"))


include: "workflow/rules/common.smk"
include: "workflow/rules/preflight.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/circuits.smk"
include: "workflow/rules/theory.smk"
include: "workflow/rules/attack.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"


report: "workflow/report/workflow.rst"


localrules:
    all,
    tables,
    figures,
    heatmaps,
    claims,


rule all:
    default_target: True
    input:
        PLANS.tables(TARGET_SCALE),
        PLANS.figures(TARGET_SCALE),
        PLANS.ledger(TARGET_SCALE),
        artefacts.RECORDS.format(scale=TARGET_SCALE),


rule tables:
    input:
        PLANS.tables(TARGET_SCALE),


rule figures:
    input:
        PLANS.figures(TARGET_SCALE),


rule heatmaps:
    input:
        PLANS.heatmaps(TARGET_SCALE),


rule claims:
    input:
        PLANS.ledger(TARGET_SCALE),


for target, files in PLANS.by_name(TARGET_SCALE).items():
    if not workflow.is_rule(target):

        rule:
            name:
                target
            localrule: True
            input:
                files,


# A name that is no target's.
rule unknown_target:
    input:
        lambda w: PLANS.unnamed(TARGET_SCALE, w),
    output:
        "{unknown}",
    wildcard_constraints:
        unknown="[A-Za-z0-9_]+",


# A path of a scale that is not there.
rule unknown_scale:
    input:
        PLANS.refused,
    output:
        "{folder}/{unknown}/{rest}",
    wildcard_constraints:
        folder="results|figures",
        unknown=rf"(?!(?:{SCALES})/)[^/]+",
        rest=".+",
