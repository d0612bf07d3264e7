"""The code hash follows the meaning of the code that is used, and nothing else."""

from __future__ import annotations

import textwrap

import pytest

from latreft import code_hash as module

FILES = {
    "latreft/__init__.py": '"""Package."""\n',
    "latreft/sub/__init__.py": "",
    "latreft/sub/deep.py": "VALUE = 1\n",
    "latreft/middle.py": "from latreft.sub import deep\n\n\ndef run():\n    return deep.VALUE\n",
    "latreft/unused.py": "OTHER = 1\n",
    "latreft/named.py": "BY_NAME = 1\n",
    "script.py": '"""Script."""\nfrom latreft.middle import run\n\nrun()\n',
}


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A small package; ``tree(path=text)`` changes files and gives the script's hash."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(module, "SOURCE", tmp_path)

    def hashed(name=None, text=None, modules=()):
        if name is not None:
            (tmp_path / name).write_text(textwrap.dedent(text))
        module._parsed.cache_clear()
        return module.code_hash(tmp_path / "script.py", modules)

    yield hashed
    module._parsed.cache_clear()


def test_is_the_same_for_the_same_code(tree):
    assert tree() == tree()
    assert len(tree()) == 16


@pytest.mark.parametrize("name", ["script.py", "latreft/middle.py", "latreft/sub/deep.py", "latreft/__init__.py"])
def test_comments_docstrings_and_layout_change_nothing(tree, name):
    before = tree()
    body = FILES[name].replace('"""Package."""\n', "").replace('"""Script."""\n', "")
    assert tree(name, f'"""Said better, at length."""\n# why\n\n\n{body}\n\n# end\n') == before


def test_function_docstrings_change_nothing_and_other_strings_do(tree):
    before = tree()
    documented = (
        'from latreft.sub import deep\ndef run():\n    """What it does."""\n    return (deep\n        .VALUE)\n'
    )
    assert tree("latreft/middle.py", documented) == before
    assert tree("latreft/middle.py", documented.replace("return", "x = 'text'\n    return")) != before


def test_a_function_of_a_docstring_alone_is_like_one_that_passes(tree):
    before = tree("latreft/middle.py", "def run():\n    pass\n")
    assert tree("latreft/middle.py", 'def run():\n    """Nothing."""\n') == before


@pytest.mark.parametrize("name", ["script.py", "latreft/middle.py", "latreft/sub/deep.py", "latreft/sub/__init__.py"])
def test_a_line_of_code_anywhere_on_the_way_changes_it(tree, name):
    before = tree()
    assert tree(name, FILES[name] + "\nADDED = 2\n") != before


def test_a_module_that_is_not_used_changes_nothing(tree):
    before = tree()
    assert tree("latreft/unused.py", "OTHER = 2\n") == before


def test_modules_imported_by_name_count_where_they_are_given(tree):
    before, plain = tree(modules=["latreft.named"]), tree()
    assert before != plain
    assert tree("latreft/named.py", "BY_NAME = 2\n") == plain
    assert tree(modules=["latreft.named"]) != before


def test_an_import_inside_a_function_counts(tree):
    before = tree("latreft/middle.py", "def run():\n    import latreft.unused\n")
    assert tree("latreft/unused.py", "OTHER = 2\n") != before


def test_a_circle_of_imports_ends(tree):
    tree("latreft/sub/deep.py", "import latreft.middle\nVALUE = 1\n")
    assert tree()


def test_a_module_that_does_not_exist_is_an_error(tree):
    with pytest.raises(FileNotFoundError, match="latreft.nowhere is no module of"):
        tree(modules=["latreft.nowhere"])


def test_every_defense_hashes_its_own_file_and_what_it_rests_on():
    script = module.SOURCE / "train_defense.py"
    used = module.modules_used(script, ["latreft.defenses.lat_reft"])
    for name in ("latreft.training", "latreft.interventions.pgd", "latreft.interventions.surrogate", "latreft.engine.reference",
                 "latreft.models.classifier", "latreft.defenses.lat_reft"):  # fmt: skip
        assert name in used
    assert "latreft.defenses.cat" not in used
    assert not [name for name in used if name.startswith(("latreft.plots", "latreft.tables"))]
    hashes = {module.code_hash(script, [f"latreft.defenses.{m}"]) for m in ("lat_reft", "lat", "cat", "r2d2", "none")}
    assert len(hashes) == 5


FAMILIES = "latreft.models.families"
RULES = "".join(path.read_text() for path in (module.SOURCE.parent / "workflow" / "rules").glob("*.smk"))


@pytest.mark.parametrize("script", sorted(module.SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_no_job_rests_on_a_family_but_by_its_model(script):
    """A family that is added or changed reruns the jobs of its own models; and each of those, for the rule hands it over."""
    used = module.modules_used(script)
    assert not [name for name in used if name.startswith(f"{FAMILIES}.")]
    if FAMILIES in used and script.name != "preflight.py":
        own = {"attack.py": "attack_code", "train_defense.py": "training_code"}
        wanted = own.get(script.name, f'model_code("{script.name}")')
        assert f"code=PLANS.{wanted}," in RULES and f'PLANS.code("{script.name}")' not in RULES
