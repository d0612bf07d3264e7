# Figures: built from records and neuron scores only.
FIGURE = "figures/{scale_folder}{figure}"


def figure_scale(wildcards):
    return wildcards.scale_folder.rstrip("/") or "paper"


def figure_plan(wildcards):
    return PLANS[figure_scale(wildcards)]


def scored(template):
    """The files of a figure's scored classifiers: every model of the scale on the figure's data sets."""

    def files(wildcards):
        plan = figure_plan(wildcards)
        return [
            template.format(scale=plan.scale.name, dataset=dataset, model=model)
            for dataset in plan.target(wildcards.figure).scores
            for model in plan.scale.models
        ]

    return files


def figure_records(wildcards):
    return target_records(figure_plan(wildcards), wildcards.figure) + scored(artefacts.SCORES_RECORD)(wildcards)


rule figure:
    input:
        records=figure_records,
        scores=scored(artefacts.SCORES),
    output:
        pdf=FIGURE + ".pdf",
        png=report(
            FIGURE + ".png",
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{figure}"},
        ),
    params:
        scale=figure_scale,
        scale_title=lambda w: figure_plan(w).scale.settings.title,
        target=lambda w: w.figure,
        title=lambda w: figure_plan(w).target(w.figure).title,
        titles=lambda w: titles(figure_plan(w)),
        cells=lambda w: cells_of(figure_plan(w), w.figure),
        code=lambda w: code("make_figure.py", f"latreft.plots.{figure_module(w)}"),
    log:
        "logs/figure/{scale_folder}{figure}.log",
    resources:
        runtime=10,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/make_figure.py"


def figure_module(wildcards):
    return "heatmaps" if wildcards.figure.startswith("heatmaps_") else wildcards.figure
