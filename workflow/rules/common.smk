# The plans of all scales; what rules ask of them is in src/latreft/plans.py.
from snakemake.exceptions import WorkflowError

from latreft import artefacts, plans
from latreft.settings import SettingsError

TARGET_SCALE = config.get("scale", "paper")
ENVIRONMENT = "../../environment.yml"

try:
    PLANS = plans.Plans(ROOT, plans.load_plans(ROOT, config))
except SettingsError as error:
    raise WorkflowError(str(error)) from None

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
