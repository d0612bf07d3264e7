# Tables, and all records in one file: built from records only (differences: also from per-example outcomes).
rule table:
    input:
        records=PLANS.table_records,
        manifests=PLANS.table_manifests,
        outcomes=PLANS.table_outcomes,
        paper=PAPER_NUMBERS,
    output:
        csv=report(
            f"{artefacts.TABLE}.csv",
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{table}", "scale": "{scale}"},
        ),
        md=f"{artefacts.TABLE}.md",
        tex=f"{artefacts.TABLE}.tex",
    params:
        scale=lambda w: w.scale,
        scale_title=lambda w: PLANS.scale(w).settings.title,
        target=lambda w: w.table,
        builder=PLANS.table_builder,
        title=lambda w: PLANS.plan(w).target(w.table).title,
        titles=lambda w: plans.titles(PLANS.plan(w), w.table),
        cells=lambda w: plans.cells(PLANS.plan(w), w.table),
        code=PLANS.table_code,
    log:
        "logs/{scale}/table/{table}.log",
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/make_table.py"


rule records:
    input:
        records=PLANS.all_records,
    output:
        csv=artefacts.RECORDS,
    params:
        code=PLANS.code("collect_records.py"),
    log:
        "logs/{scale}/records.log",
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/collect_records.py"
