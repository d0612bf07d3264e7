# Neuron scores, once a classifier: every surrogate of its arms and the heatmaps are read from them.


rule score_neurons:
    input:
        classifier=artefacts.CLASSIFIER,
        data=artefacts.DATA,
    output:
        manifest=artefacts.SCORES_MANIFEST,
        scores=artefacts.SCORES,
        record=artefacts.SCORES_RECORD,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        settings=PLANS.score_settings,
        heatmap_ratio=0.25,
        max_length=PLANS.max_length,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        code=PLANS.model_code("score_neurons.py"),
    log:
        "logs/{scale}/score_neurons/{dataset}_{model}.log",
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("score_neurons", "runtime", 120),
        mem_mb=PLANS.resource("score_neurons", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/score_neurons.py"
