# The plans of all scales; what rules ask of them is in src/latreft/plans.py.
from latreft import artefacts, plans
from latreft.cli import one_line_errors

TARGET_SCALE = config.get("scale", "paper")
ENVIRONMENT = "../../environment.yml"

with one_line_errors():
    PLANS = plans.Plans(ROOT, plans.load_plans(ROOT, config))

SCALES = "|".join(sorted(PLANS.by_scale))
PAPER_NUMBERS = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("resources/paper/*.csv"))


wildcard_constraints:
    scale=SCALES,
    scale_folder=f"(?:(?:{SCALES})/)?",
    dataset="[a-z0-9_]+",
    model="[a-z0-9_.-]+",
    arm="[a-z0-9_.]+",
    seed=r"\d+",
    attack="[a-z0-9_]+",
    table="[a-z0-9_]+",
    figure="[a-z0-9_]+",
