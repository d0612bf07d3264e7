# Numeric checks of the theorems: on random instances, and on a classifier, its data and its neuron scores.


rule check_theory:
    input:
        classifier=artefacts.CLASSIFIER,
        data=artefacts.DATA,
        scores=artefacts.SCORES_MANIFEST,
    output:
        record=artefacts.THEORY_RECORD,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        settings=PLANS.theory_settings,
        max_length=PLANS.max_length,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        code=PLANS.model_code("check_theory.py"),
    log:
        "logs/{scale}/check_theory/{dataset}_{model}.log",
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("check_theory", "runtime", 60),
        mem_mb=PLANS.resource("check_theory", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/check_theory.py"
