# What an arm is worth: clean accuracy, and each attack on it. These jobs go before trainings that are ready as well: what a stopped
# sweep leaves behind is whole arms.


rule evaluate_accuracy:
    input:
        classifier=artefacts.CLASSIFIER,
        defense=artefacts.DEFENSE,
        data=artefacts.DATA,
    output:
        record=artefacts.ACCURACY_RECORD,
        outcomes=artefacts.ACCURACY_OUTCOMES,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        arm=lambda w: w.arm,
        method=PLANS.method,
        seed=lambda w: int(w.seed),
        settings=PLANS.evaluation_settings,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        code=PLANS.model_code("evaluate_accuracy.py"),
    log:
        "logs/{scale}/evaluate_accuracy/{dataset}_{model}_{arm}_{seed}.log",
    priority: 1
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("evaluate_accuracy", "runtime", 240),
        mem_mb=PLANS.resource("evaluate_accuracy", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/evaluate_accuracy.py"


rule evaluate_classifier:
    input:
        classifier=artefacts.CLASSIFIER,
        training=artefacts.FINETUNE_TRAINING,
        data=artefacts.DATA,
    output:
        record=artefacts.FINETUNE_RECORD,
        outcomes=artefacts.FINETUNE_OUTCOMES,
    params:
        settings=PLANS.evaluation_settings,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        code=PLANS.model_code("evaluate_classifier.py"),
    log:
        "logs/{scale}/evaluate_classifier/{dataset}_{model}.log",
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("evaluate_classifier", "runtime", 240),
        mem_mb=PLANS.resource("evaluate_classifier", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/evaluate_classifier.py"


rule attack:
    input:
        classifier=artefacts.CLASSIFIER,
        defense=artefacts.DEFENSE,
        data=artefacts.DATA,
    output:
        record=artefacts.ATTACK_RECORD,
        outcomes=artefacts.ATTACK_OUTCOMES,
    params:
        scale=lambda w: w.scale,
        dataset=lambda w: w.dataset,
        model=lambda w: w.model,
        arm=lambda w: w.arm,
        method=PLANS.method,
        seed=lambda w: int(w.seed),
        attack=lambda w: w.attack,
        settings=PLANS.attack_settings,
        max_length=PLANS.max_length,
        dtype=PLANS.dtype,
        runtime=PLANS.runtime,
        execution=PLANS.execution,
        journal=PLANS.checkpoint("journal.jsonl"),
        code=PLANS.attack_code,
    log:
        "logs/{scale}/attack/{dataset}_{model}_{arm}_{seed}_{attack}.log",
    priority: 1
    threads: PLANS.threads
    resources:
        gpu=PLANS.gpus,
        runtime=PLANS.resource("attack", "runtime", 720),
        mem_mb=PLANS.resource("attack", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/attack.py"
