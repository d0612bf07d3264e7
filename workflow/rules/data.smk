# Data sets and base models: fetched once, pinned, then used without a network.
rule prepare_data:
    output:
        manifest=artefacts.DATA,
    params:
        dataset=lambda w: w.dataset,
        settings=lambda w: scale_of(w).settings.datasets[w.dataset].model_dump(mode="json"),
        code=code("prepare_data.py"),
    log:
        log_of("prepare_data", "dataset"),
    resources:
        runtime=device_resource("prepare_data", "runtime", 60),
        mem_mb=device_resource("prepare_data", "mem_mb", 8000),
    conda:
        ENVIRONMENT
    script:
        "../../src/prepare_data.py"


def tokenizer_texts(wildcards):
    """A random-weight model's tokenizer learns from the scale's data sets; others need no data."""
    scale = scale_of(wildcards)
    if scale.models[wildcards.model].source.kind != "random":
        return []
    return [artefacts.DATA.format(scale=wildcards.scale, dataset=name) for name in scale.settings.datasets]


rule fetch_model:
    input:
        data=tokenizer_texts,
    output:
        manifest=artefacts.BASE,
    params:
        model=lambda w: w.model,
        settings=lambda w: scale_of(w).models[w.model].model_dump(
            mode="json", include={"family", "layers", "source", "dtype"}
        ),
        code=code("fetch_model.py"),
    log:
        log_of("fetch_model", "model"),
    resources:
        runtime=device_resource("fetch_model", "runtime", 120),
        mem_mb=device_resource("fetch_model", "mem_mb", 32000),
    conda:
        ENVIRONMENT
    script:
        "../../src/fetch_model.py"
