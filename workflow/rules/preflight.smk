# `snakemake -- preflight`: everything that a scale needs and that is missing, named at once, before hours are spent.
rule preflight:
    params:
        scale=TARGET_SCALE,
        config=config,
        root=str(ROOT),
    log:
        f"logs/{TARGET_SCALE}/preflight.log",
    localrule: True
    conda:
        ENVIRONMENT
    script:
        "../../src/preflight.py"
