# The long rules: clean fine-tuning, and the training of each arm. Both resume from a checkpoint outside their outputs.
rule finetune:
    input:
        base=artefacts.BASE,
        data=artefacts.DATA,
    output:
        manifest=artefacts.CLASSIFIER,
        weights=artefacts.CLASSIFIER_WEIGHTS,
        record=artefacts.FINETUNE_RECORD,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        settings=lambda w: scale_of(w).finetune(w.dataset, w.model).model_dump(),
        evaluation=lambda w: evaluation_settings(w),
        max_length=max_length,
        dtype=model_dtype,
        layers=lambda w: scale_of(w).models[w.model].layers,
        runtime=runtime,
        checkpoint=lambda w: checkpoint(w, "finetune.pt"),
        code=code("finetune.py"),
    log:
        log_of("finetune", "dataset", "model"),
    threads: threads_of
    resources:
        gpu=gpus,
        runtime=device_resource("finetune", "runtime", 1440),
        mem_mb=device_resource("finetune", "mem_mb", 64000),
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
        method=lambda w: arm_of(w).method,
        seed=lambda w: int(w.seed),
        settings=lambda w: plan_of(w).settings_of(arm_of(w)).model_dump(mode="json"),
        max_length=max_length,
        dtype=model_dtype,
        runtime=runtime,
        checkpoint=lambda w: checkpoint(w, "train.pt"),
        code=lambda w: code("train_defense.py", f"latreft.defenses.{arm_of(w).method}"),
    log:
        log_of("train_defense", "dataset", "model", "arm", "seed"),
    threads: threads_of
    resources:
        gpu=gpus,
        runtime=device_resource("train_defense", "runtime", 1440),
        mem_mb=device_resource("train_defense", "mem_mb", 64000),
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
        config=lambda w, input: str(Path(input.classifier).parent / "config.json"),
        code=code("count_cost.py"),
    log:
        log_of("count_cost", "dataset", "model", "arm", "seed"),
    resources:
        runtime=10,
        mem_mb=2000,
    conda:
        ENVIRONMENT
    script:
        "../../src/count_cost.py"
