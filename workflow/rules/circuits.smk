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
        settings=lambda w: scale_of(w).settings.scores.model_dump(),
        heatmap_ratio=0.25,
        max_length=max_length,
        dtype=model_dtype,
        runtime=runtime,
        code=code("score_neurons.py"),
    log:
        log_of("score_neurons", "dataset", "model"),
    threads: threads_of
    resources:
        gpu=gpus,
        runtime=device_resource("score_neurons", "runtime", 120),
        mem_mb=device_resource("score_neurons", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/score_neurons.py"
