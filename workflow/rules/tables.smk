# Tables, and all records in one file: built from records only.
def table_inputs(wildcards):
    plan = plan_of(wildcards)
    if wildcards.table == "dataset_stats":
        return []
    return target_records(plan, wildcards.table)


def table_manifests(wildcards):
    if wildcards.table != "dataset_stats":
        return []
    datasets = scale_of(wildcards).settings.datasets
    return [artefacts.DATA.format(scale=wildcards.scale, dataset=name) for name in datasets]


PAPER_NUMBERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "resources/paper").glob("*.csv"))


rule table:
    input:
        records=table_inputs,
        manifests=table_manifests,
        paper=PAPER_NUMBERS,
    output:
        csv=report(
            artefacts.TABLE + ".csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}", "scale": "{scale}"},
        ),
        md=artefacts.TABLE + ".md",
        tex=artefacts.TABLE + ".tex",
    params:
        scale=lambda w: w.scale,
        scale_title=lambda w: scale_of(w).settings.title,
        target=lambda w: w.table,
        title=lambda w: plan_of(w).target(w.table).title,
        titles=lambda w: titles(plan_of(w)),
        cells=lambda w: cells_of(plan_of(w), w.table),
        code=lambda w: code("make_table.py", f"latreft.tables.{w.table}"),
    log:
        log_of("table", "table"),
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/make_table.py"


def all_records(wildcards):
    plan = plan_of(wildcards)
    found = {}
    for path, arm in plan.all_arms.items():
        found.update(dict.fromkeys(arm_records(plan, arm, plan.arm_attacks[path])))
    for dataset, model in classifiers(plan):
        place = dict(scale=wildcards.scale, dataset=dataset, model=model)
        found[artefacts.FINETUNE_RECORD.format(**place)] = None
    return list(found)


rule records:
    input:
        records=all_records,
    output:
        csv=artefacts.RECORDS,
    params:
        code=code("collect_records.py"),
    log:
        "logs/{scale}/records.log",
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/collect_records.py"
