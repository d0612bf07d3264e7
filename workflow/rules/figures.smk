# Figures: built from records and neuron scores only.
rule figure:
    input:
        records=PLANS.figure_records,
        scores=PLANS.figure_scores,
    output:
        pdf="figures/{scale_folder}{figure}.pdf",
        png=report(
            "figures/{scale_folder}{figure}.png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    params:
        scale=lambda w: PLANS.figure_plan(w).scale.name,
        scale_title=lambda w: PLANS.figure_plan(w).scale.settings.title,
        target=lambda w: w.figure,
        title=lambda w: PLANS.figure_plan(w).target(w.figure).title,
        titles=lambda w: plans.titles(PLANS.figure_plan(w), w.figure),
        cells=lambda w: plans.cells(PLANS.figure_plan(w), w.figure),
        code=PLANS.figure_code,
    log:
        "logs/figure/{scale_folder}{figure}.log",
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/make_figure.py"
