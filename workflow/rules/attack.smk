# What an arm is worth: clean accuracy, and each attack on it.
def evaluation_settings(wildcards):
    return scale_of(wildcards).settings.evaluation.model_dump() | {"max_length": max_length(wildcards)}


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
        method=lambda w: arm_of(w).method,
        seed=lambda w: int(w.seed),
        settings=evaluation_settings,
        dtype=model_dtype,
        runtime=runtime,
        code=code("evaluate_accuracy.py"),
    log:
        log_of("evaluate_accuracy", "dataset", "model", "arm", "seed"),
    threads: threads_of
    resources:
        gpu=gpus,
        runtime=device_resource("evaluate_accuracy", "runtime", 240),
        mem_mb=device_resource("evaluate_accuracy", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/evaluate_accuracy.py"


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
        method=lambda w: arm_of(w).method,
        seed=lambda w: int(w.seed),
        attack=lambda w: w.attack,
        settings=lambda w: scale_of(w).attack(w.dataset, w.model, w.attack).model_dump(mode="json"),
        max_length=max_length,
        dtype=model_dtype,
        runtime=runtime,
        journal=lambda w: checkpoint(w, "journal.jsonl"),
        code=lambda w: code("attack.py", f"latreft.attacks.{scale_of(w).attack_kind(w.attack)}"),
    log:
        log_of("attack", "dataset", "model", "arm", "seed", "attack"),
    threads: threads_of
    resources:
        gpu=gpus,
        runtime=device_resource("attack", "runtime", 720),
        mem_mb=device_resource("attack", "mem_mb", 64000),
    conda:
        ENVIRONMENT
    script:
        "../../src/attack.py"
