# Data sets and base models: fetched once, pinned, then used without a network.


rule prepare_data:
    input:
        files=PLANS.source_files,
    output:
        manifest=artefacts.DATA,
    params:
        dataset=lambda w: w.dataset,
        settings=PLANS.dataset_settings,
        code=PLANS.code("prepare_data.py"),
    log:
        "logs/{scale}/prepare_data/{dataset}.log",
    resources:
        runtime=PLANS.resource("prepare_data", "runtime", 60),
        mem_mb=PLANS.resource("prepare_data", "mem_mb", 8000),
    conda:
        ENVIRONMENT
    script:
        "../../src/prepare_data.py"


rule fetch_model:
    input:
        data=PLANS.tokenizer_texts,
    output:
        manifest=artefacts.BASE,
    params:
        model=lambda w: w.model,
        settings=PLANS.model_settings,
        code=PLANS.model_code("fetch_model.py"),
    log:
        "logs/{scale}/fetch_model/{model}.log",
    resources:
        runtime=PLANS.resource("fetch_model", "runtime", 120),
        mem_mb=PLANS.resource("fetch_model", "mem_mb", 32000),
    conda:
        ENVIRONMENT
    script:
        "../../src/fetch_model.py"
