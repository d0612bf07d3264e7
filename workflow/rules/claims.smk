# The verdict on every claim of the paper, from records, and from per-example outcomes where arms are compared.
rule judge_claims:
    input:
        records=lambda w: PLANS.claims(w.scale).records(),
        outcomes=lambda w: PLANS.claims(w.scale).outcomes(),
    output:
        csv=report(
            f"{artefacts.CLAIMS}.csv",
            caption="../report/claims.rst",
            category="Claims",
            labels={"scale": "{scale}"},
        ),
        md=f"{artefacts.CLAIMS}.md",
        tex=f"{artefacts.CLAIMS}.tex",
    params:
        scale=lambda w: w.scale,
        caption=lambda w: f"The paper's claims, judged at {PLANS.scale(w).settings.title}",
        ledger=lambda w: PLANS.claims(w.scale).ledger.model_dump(mode="json", exclude_defaults=True),
        arms=lambda w: PLANS.claims(w.scale).arms,
        costs=lambda w: PLANS.paper_costs(w.scale),
        main_model=lambda w: PLANS.scale(w).settings.main_model,
        models=lambda w: list(PLANS.scale(w).models),
        code=PLANS.code("judge_claims.py"),
    log:
        "logs/{scale}/claims.log",
    resources:
        runtime=30,
        mem_mb=4000,
    conda:
        ENVIRONMENT
    script:
        "../../src/judge_claims.py"
