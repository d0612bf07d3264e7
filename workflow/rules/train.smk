# The long rules: clean fine-tuning, and the training of each arm. Both resume from a checkpoint outside their outputs.


rule finetune:
    input:
        base=artefacts.BASE,
        data=artefacts.DATA,
    output:
        manifest=artefacts.CLASSIFIER,
        weights=artefacts.CLASSIFIER_WEIGHTS,
        record=artefacts.FINETUNE_TRAINING,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        settings=PLANS.finetune_settings,
        max_length=PLANS.max_length,
        dtype=PLANS.dtype,
        layers=PLANS.layers,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        checkpoint=PLANS.checkpoint("finetune.pt"),
        code=PLANS.model_code("finetune.py"),
    log:
        "logs/{scale}/finetune/{dataset}_{model}.log",
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("finetune", "runtime", 1440),
        mem_mb=PLANS.resource("finetune", "mem_mb", 96000),
    conda:
        ENVIRONMENT
    script:
        "../../src/finetune.py"


rule train_defense:
    input:
        classifier=artefacts.CLASSIFIER,
        data=artefacts.DATA,
        scores=artefacts.SCORES_MANIFEST,
    output:
        manifest=artefacts.DEFENSE,
        weights=artefacts.DEFENSE_WEIGHTS,
        record=artefacts.TRAIN_RECORD,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        arm=lambda w: w.arm,
        method=PLANS.method,
        seed=lambda w: int(w.seed),
        settings=PLANS.arm_settings,
        max_length=PLANS.max_length,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        checkpoint=PLANS.checkpoint("train.pt"),
        code=PLANS.training_code,
    log:
        "logs/{scale}/train_defense/{dataset}_{model}_{arm}_{seed}.log",
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("train_defense", "runtime", 1440),
        mem_mb=PLANS.resource("train_defense", "mem_mb", 96000),
    conda:
        ENVIRONMENT
    script:
        "../../src/train_defense.py"


rule count_cost:
    input:
        record=artefacts.TRAIN_RECORD,
        classifier=artefacts.CLASSIFIER,
    output:
        record=artefacts.COST_RECORD,
    params:
        config=lambda w, input: str(Path(input.classifier).with_name("config.json")),
        code=PLANS.code("count_cost.py"),
    log:
        "logs/{scale}/count_cost/{dataset}_{model}_{arm}_{seed}.log",
    resources:
        runtime=10,
        mem_mb=2000,
    conda:
        ENVIRONMENT
    script:
        "../../src/count_cost.py"
