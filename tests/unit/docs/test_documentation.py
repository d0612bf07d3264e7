"""The documentation says what the code does: keys, defaults, targets, versions, links, and examples that run."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from unit.defenses.arms import arm, fresh, tokenizer

from latreft import config, experiments, records
from latreft.attacks.base import allowed_tokens
from latreft.attacks.registry import kinds
from latreft.config import load_models, load_scale, read_yaml
from latreft.data import settings as data
from latreft.defenses.registry import methods
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.experiments import ExperimentSettings, load_plan
from latreft.models.batch import Example, collate
from latreft.models.classifier import Classifier
from latreft.tables.context import Context

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("results", "figures", "resources/sample")
PAGES = sorted(
    [*(page.relative_to(ROOT) for pattern in ("*.md", "docs/*.md") for page in ROOT.glob(pattern))]
    + [Path(folder, "README.md") for folder in FOLDERS]
)


def text(page: str | Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def sections(page: str | Path) -> dict[str, str]:
    """Heading → what stands below it, up to the next heading of any level."""
    parts = re.split(r"^#+ (.+)$", without_code(text(page)), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def without_code(content: str) -> str:
    return re.sub(r"^```.*?^```$", "", content, flags=re.MULTILINE | re.DOTALL)


def examples(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), flags=re.MULTILINE | re.DOTALL)


def rows(section: str) -> dict[str, str]:
    """First cell (a name in backticks) → the row, of the tables in a section."""
    return {name: row for row, name in re.findall(r"^(\| `([^`]+)`.*\|)$", section, flags=re.MULTILINE)}


# --- configuration.md ---

SETTINGS: dict[str, type[BaseModel]] = {
    "A scale file": config.ScaleSettings,
    "Data sets": data.DatasetSettings,
    "Length": data.LengthFilter,
    "Source: hub": data.HubSource,
    "Source: parquet": data.ParquetSource,
    "Source: sample": data.SampleSource,
    "Source: generated": data.GeneratedSource,
    "Finetune": config.FinetuneSettings,
    "Scores": config.ScoreSettings,
    "Evaluation": config.EvaluationSettings,
    "Theory": config.TheorySettings,
    "Overrides": config.Override,
    "models.yaml": config.ModelSettings,
    "Model source: hub": config.HubModel,
    "Model source: gguf": config.GgufModel,
    "Model source: random": config.RandomModel,
    "experiments.yaml": experiments.ExperimentSettings,
    "A target": experiments.TargetSettings,
    "A group": experiments.Group,
}
SETTINGS |= {f"Method: {name}": importlib.import_module(f"latreft.defenses.{name}").Settings for name in methods()}
SETTINGS |= {f"Attack: {name}": importlib.import_module(f"latreft.attacks.{name}").Settings for name in kinds()}


def default_words(field: Any) -> str:
    """A field's default as the page writes it."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return "all defaults" if isinstance(value, BaseModel) else f"`{json.dumps(value, ensure_ascii=False)}`"


def choices(annotation: Any) -> Iterator[str]:
    """The words that a field may be, as YAML has them, where it is one of some words."""
    if get_origin(annotation) is Literal:
        yield from (word if isinstance(word, str) else json.dumps(word) for word in get_args(annotation))
    else:
        for part in get_args(annotation):
            yield from choices(part)


@pytest.mark.parametrize("heading", SETTINGS)
def test_configuration_page_has_every_key_with_its_default_and_choices(heading):
    page = sections("docs/configuration.md")
    assert heading in page, f"docs/configuration.md needs a section '{heading}'"
    documented = rows(page[heading])
    fields = SETTINGS[heading].model_fields
    assert set(documented) == set(fields), f"keys documented under '{heading}', and keys of {SETTINGS[heading]}"
    for name, field in fields.items():
        row = documented[name]
        assert f"| {default_words(field)} |" in row, f"'{heading}', {name}: the default is {default_words(field)}"
        missing = [word for word in choices(field.annotation) if f"`{word}`" not in row]
        assert not missing, f"'{heading}', {name}: {missing} not in the row"


def test_every_settings_class_has_a_section():
    documented = set(SETTINGS.values())
    for module in (config, data, experiments):
        for name, value in vars(module).items():
            if isinstance(value, type) and issubclass(value, config.Settings) and value is not config.Settings:
                assert value in documented, f"{module.__name__}.{name} has no section in docs/configuration.md"


# --- records.md ---


@pytest.mark.parametrize("model", [records.RunRecord, records.ModelInfo, records.Metric])
def test_records_page_has_every_field(model):
    documented = rows(sections("docs/records.md")["Fields"])
    assert not set(model.model_fields) - set(documented)


def test_records_page_has_columns_volatile_keys_and_outcomes():
    from latreft.attacks.base import Outcome

    page = text("docs/records.md")
    names = [*records.LONG_COLUMNS, *records.VOLATILE_COST, *Outcome.__dataclass_fields__]
    assert not [name for name in names if f"`{name}`" not in page]


# --- README.md ---


def test_readme_commands_are_targets_of_the_makefile():
    commands = re.findall(r"^    (make \w+)$", text("README.md"), flags=re.MULTILINE)
    assert commands == ["make smoke", "make test"]
    makefile = text("Makefile")
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, flags=re.MULTILINE), command


def test_readme_lists_every_target():
    listed = set(rows(sections("README.md")["Targets"]))
    wanted = ExperimentSettings.model_validate(read_yaml(ROOT / "config/experiments.yaml"))
    named = {"tables", "figures", "heatmaps", "claims", "all"}
    assert named | {*wanted.tables, *wanted.figures} <= listed <= named | {*wanted.all()}  # a reader's own need no row


def test_readme_example_of_own_data_is_a_whole_scale_with_a_table(tmp_path):
    own, table = (yaml.safe_load(example) for example in examples("README.md", "yaml"))
    path = tmp_path / "experiments.yaml"
    wanted = read_yaml(ROOT / "config/experiments.yaml")
    for section, targets in wanted.items():  # a reader's own targets may show a data set of that name
        wanted[section] = {name: target for name, target in targets.items() if "reviews" not in str(target)}
    path.write_text(yaml.safe_dump(wanted | {"extra": wanted.get("extra", {}) | table["extra"]}))
    plan = load_plan(load_scale(own, load_models(ROOT / "config"), "README.md"), path)
    assert {"reviews", "dataset_stats", "finetuned_accuracy"} == {name for name, _ in plan.targets()}
    assert [arm.name for arm in plan.arms("reviews")] == ["none", "lat_reft", "lat_reft__window_1"]
    assert {arm.dataset for arm in plan.all_arms.values()} == {"reviews"}


# --- architecture.md ---


def rules_with_outputs() -> dict[str, str]:
    """Rule → its text, of every rule that makes something."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / "workflow/rules").glob("*.smk")):
        parts = re.split(r"^rule (\w+):$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: body for name, body in found.items() if "    output:\n" in body}


def test_architecture_page_has_every_rule_that_makes_something():
    page = sections("docs/architecture.md")["How data walks"]
    rules = rules_with_outputs()
    assert len(rules) > 8 and not [name for name in rules if f"`{name}`" not in page]


def test_configuration_page_names_the_rules_whose_resources_can_be_set():
    row = rows(sections("docs/configuration.md")["A scale file"])["resources"]
    assert not [name for name in get_args(config.Rule) if f"`{name}`" not in row]


# --- versions ---


def test_environment_and_pyproject_pin_the_same_versions():
    project = tomllib.loads(text("pyproject.toml"))
    environment = yaml.safe_load(text("environment.yml"))
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert sorted(pip) == sorted(project["project"]["dependencies"])
    assert all("==" in requirement for requirement in pip)
    assert " ".join(project["tool"]["latreft"]["without_dependencies"]) in text("environment.yml")


def test_citation_has_the_version_of_the_package():
    citation = yaml.safe_load(text("CITATION.cff"))
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert (citation["version"], citation["license"]) == (project["version"], project["license"])


# --- links ---


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text(page))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (ROOT / page).parent / place if place else ROOT / page
        assert target.exists(), f"{page} links to {link}, which is not there"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page} links to {link}; anchors are {sorted(anchors(target))}"


# --- the examples of CONTRIBUTING.md ---


def module_of(example: str) -> types.ModuleType:
    """The example as a module; its dataclasses and settings look themselves up by its name."""
    module = types.ModuleType("documentation_example")
    sys.modules[module.__name__] = module
    exec(compile(example, "CONTRIBUTING.md", "exec"), module.__dict__)
    return module


def example_with(words: str) -> types.ModuleType:
    (example,) = [code for code in examples("CONTRIBUTING.md", "python") if words in code]
    return module_of(example)


def test_the_new_defense_trains_and_the_new_attack_attacks_it():
    defense, attack = example_with("def train("), example_with("def attack(")
    model = fresh()
    before = model.head.weight.clone()
    settings = defense.Settings(epsilon=0.05, examples=8, epochs=10, batch_size=4, learning_rate=2e-3)
    trained = defense.train(arm(model, {}), settings)
    losses = [entry["loss"] for entry in trained.summary.history]
    assert sum(losses[-4:]) < sum(losses[:4]) and not before.equal(model.head.weight)

    (example, *_) = arm(model, {}).examples
    search = ReferenceEngine().search(Defended(model), example.tokens, len(example.tokens), example.label, 8)
    given = {"label": example.label, "allowed": allowed_tokens(tokenizer(), model.vocabulary), "encode": tuple}
    found = [run_example(attack, search, given, rounds) for rounds in (1, 6)]
    assert len(found[0].tokens) == 3 and found[1].loss >= found[0].loss and found[1].forwards == 1 + 6 * 5


def run_example(attack: types.ModuleType, search: Any, given: dict[str, Any], rounds: int) -> Any:
    import torch

    settings = attack.Settings(tokens=3, rounds=rounds, candidates=5)
    return attack.attack(search, **given, generator=torch.Generator().manual_seed(0), settings=settings)


def test_the_new_family_builds_a_model_that_classifies():
    import torch

    family = example_with("FAMILY = Family(").FAMILY
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = Classifier(family.build(family.config(vocab_size=40, num_hidden_layers=2, **shape)), family)
    model.initialise_head(0)
    batch = collate([Example("a", (5, 6, 7), 0), Example("b", (8,), 1)])
    alone = model(collate([Example("b", (8,), 1)]))
    assert model.layers == 2 and torch.allclose(model(batch)[1], alone[0], atol=1e-6)
    for block in family.block_list(model.base):
        inputs, output = family.neuron_layers(block)
        assert {layer.out_features for layer in inputs} == {output.in_features} == {24}


def test_the_new_table_shows_what_is_missing():
    table = example_with("def build(")
    (entry,) = [yaml.safe_load(code) for code in examples("CONTRIBUTING.md", "yaml")]
    (name, target), *_ = entry.items()
    settings = experiments.TargetSettings.model_validate(target)
    (group,) = settings.groups
    cells = [
        {"label": method, "dataset": "enron", "model": "m", "method": method, "arm": method, "seed": 0}
        | {"panel": "main", "attacks": group.attacks}
        for method in group.arms
    ]
    built = table.build(Context(name, settings.title, "smoke", "smoke scale", cells))
    assert list(built.display["Method"]) and (built.display["GCG ASR"] == "missing").all()
