"""Which arms a target wants; equal settings are one arm, whoever asks."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import yaml
from unit.core.scales import EXPERIMENTS, MODELS, SCALE, changed, plan

from latreft.plans import Plans, load_plans, titles
from latreft.settings import SettingsError

GROUP = "tables.main.groups.0"


def fault(folder, path, value) -> str:
    with pytest.raises(SettingsError) as error:
        plan(folder, changed(EXPERIMENTS, path, value))
    return str(error.value)


def names(toy, target) -> list[str]:
    return [arm.path for arm in toy.arms(target)]


def test_an_arm_that_changes_nothing_is_the_methods_own(tmp_path):
    """The default window is 20 and the default pruning ratio 0.25, whether the scale says so or not."""
    toy = plan(tmp_path)
    assert names(toy, "sweep")[:4] == [
        "words/other/lat_reft__window_1/seed0", "words/other/lat_reft__window_1/seed1",
        "words/other/lat_reft/seed0", "words/other/lat_reft/seed1",
    ]  # fmt: skip
    swept = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.0.vary", {"pruning_ratio": "pruning"}))
    assert names(swept, "sweep")[:4:2] == [
        "words/other/lat_reft__pruning_ratio_0.0/seed0",
        "words/other/lat_reft/seed0",
    ]


def test_a_layer_by_name_and_by_number_is_one_arm(tmp_path):
    assert "words/tiny/lat_reft/seed0" in names(plan(tmp_path), "sweep")  # reft_layer late is 4, the last
    by_name, by_number = (
        plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.1.vary", {"reft_layer": [value]}))
        for value in ("early", 1)
    )
    assert names(by_name, "sweep") == names(by_number, "sweep")
    arm = by_name.arm("words/tiny/lat_reft__reft_layer_1/seed0")
    assert by_name.settings_of(arm).reft_layer == 1


def test_whole_and_decimal_numbers_are_one_arm(tmp_path):
    one = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.0.vary", {"epsilon": [1, 0.5]}))
    two = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.0.vary", {"epsilon": [1.0, 0.5]}))
    assert names(one, "sweep") == names(two, "sweep")
    assert "words/other/lat_reft__epsilon_1.0/seed0" in names(one, "sweep")


def test_small_numbers_are_written_out_in_paths(tmp_path):
    arms = [{"method": "lat_reft", "learning_rate": 1e-5}]
    assert names(plan(tmp_path, changed(EXPERIMENTS, f"{GROUP}.arms", arms)), "main")[0].startswith(
        "words/tiny/lat_reft__learning_rate_0.00001/"
    )


def test_a_value_that_cannot_be_a_path_is_refused(tmp_path):
    arms = [{"method": "r2d2", "gcg_text": "? !"}]
    with pytest.raises(SettingsError, match="cannot be a path; use letters, digits"):
        plan(tmp_path, changed(EXPERIMENTS, f"{GROUP}.arms", arms), changed(SCALE, "methods.r2d2", {}))


def test_a_search_names_its_arms_after_every_value(tmp_path):
    """What a search finds becomes the scale's setting: its arms must not get other names for that."""
    searched = changed(EXPERIMENTS, "figures.sweep.groups.0.spelled_out", True)
    before, after = (
        plan(tmp_path, changed(searched, "figures.sweep.groups.0.vary", {"epsilon": [0.25, 0.5]}),
             changed(SCALE, "methods.lat_reft.epsilon", epsilon))
        for epsilon in (0.25, 0.5)
    )  # fmt: skip
    assert names(before, "sweep")[:4:2] == [
        "words/other/lat_reft__epsilon_0.25/seed0", "words/other/lat_reft__epsilon_0.5/seed0",
    ]  # fmt: skip
    assert names(before, "sweep")[:4] == names(after, "sweep")[:4]


def test_a_searchs_arms_say_the_same_settings(tmp_path):
    """What an arm leaves to the scale would change when another arm's value becomes the scale's."""
    arms = ["lat_reft", {"method": "lat_reft", "rank": 3, "label": "small"}]
    searched = changed(EXPERIMENTS, f"{GROUP}.arms", arms)
    plan(tmp_path, searched)
    with pytest.raises(
        SettingsError, match="main: of two lat_reft arms one says nothing, the other rank; with spelled"
    ):
        plan(tmp_path, changed(searched, f"{GROUP}.spelled_out", True))


def test_one_label_for_two_arms_is_refused(tmp_path):
    arms = [{"method": "lat_reft", "label": "a"}, {"method": "lat_reft", "window": 1, "label": "a"}]
    with pytest.raises(SettingsError, match="main: panel '.*' shows two arms as 'a' .*lat_reft and lat_reft__window_1"):
        plan(tmp_path, changed(EXPERIMENTS, f"{GROUP}.arms", arms))


def test_a_target_of_other_scales_is_not_offered(tmp_path):
    toy = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.scales", ["elsewhere"]))
    assert "sweep" not in dict(toy.targets())
    with pytest.raises(SettingsError, match="sweep is a target of the scales elsewhere, not of"):
        toy.cells("sweep")
    assert "sweep" in dict(plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.scales", [SCALE["scale"]])).targets())


def test_accuracy_is_measured_where_some_target_wants_it(tmp_path):
    toy = plan(tmp_path, changed(EXPERIMENTS, "figures.sweep.groups.0.accuracy", False))
    assert "words/other/lat_reft__window_1/seed0" not in toy.arms_of_known_accuracy
    assert "words/other/lat_reft/seed0" in toy.arms_of_known_accuracy  # another target wants it


def test_targets_share_arms_and_an_arm_gets_all_the_attacks_wanted(tmp_path):
    toy = plan(tmp_path)
    shared = "words/other/lat_reft/seed0"
    assert shared in names(toy, "main")
    assert shared in names(toy, "sweep")
    assert list(toy.all_arms).count(shared) == 1
    assert toy.arm_attacks[shared] == ["gcg", "weak"]
    assert toy.arm_attacks["words/other/lat_reft__window_1/seed0"] == ["weak"]
    assert len(toy.all_arms) == len({*names(toy, "main"), *names(toy, "sweep")})


def test_every_combination_is_shown_in_order_with_its_label(tmp_path):
    cells = plan(tmp_path).cells("sweep")
    assert [(c.panel, c.label, c.arm.model, c.arm.seed) for c in cells] == [
        ("main", "1", "other", 0), ("main", "1", "other", 1), ("main", "20", "other", 0), ("main", "20", "other", 1),
        ("layer", "early", "tiny", 0), ("layer", "early", "tiny", 1), ("layer", "late", "tiny", 0), ("layer", "late", "tiny", 1),
    ]  # fmt: skip
    arms = [{"method": "lat_reft", "window": 1, "label": "One"}]
    (cell, _) = plan(tmp_path, changed(changed(EXPERIMENTS, f"{GROUP}.arms", arms), f"{GROUP}.models", "main")).cells(
        "main"
    )
    assert (cell.label, cell.arm.name, dict(cell.arm.changes)) == ("One", "lat_reft__window_1", {"window": 1})
    swept = changed(EXPERIMENTS, "figures.sweep.groups.0.arms", [{"method": "lat_reft", "label": "Ours"}])
    assert plan(tmp_path, swept).cells("sweep")[0].label == "Ours, window 1"


def test_equal_settings_on_another_model_are_another_arm(tmp_path):
    values = changed(SCALE, "per_model", {"tiny": {"methods": {"lat_reft": {"window": 1}}}})
    experiments = changed(EXPERIMENTS, f"{GROUP}.arms", [{"method": "lat_reft", "window": 1}])
    assert names(plan(tmp_path, experiments, values), "main")[::2] == [
        "words/tiny/lat_reft/seed0", "words/other/lat_reft__window_1/seed0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        (f"{GROUP}.models", ["tny"], ["unknown model 'tny'; scale toy has tiny, other"]),
        (f"{GROUP}.attacks", ["pair"], ["unknown attack 'pair'; scale toy has gcg, weak"]),
        (f"{GROUP}.arms", ["lta"], ["main: arm lta: config/toy.yaml: unknown method 'lta'; methods are lat"]),
        (f"{GROUP}.arms", [], ["arms"]),
        (f"{GROUP}.arms", [{"window": 1}], ["an arm needs a method, got {'window': 1}"]),
        (f"{GROUP}.arms", [{"method": "lat_reft", "widnow": 1}], ["unknown key 'widnow' (value 1)"]),
        (f"{GROUP}.arms", [{"method": "lat_reft", "reft_layer": 99}], ["reft_layer is 99; tiny has layers 1 to 4"]),
        (f"{GROUP}.arms", [{"method": "lat_reft", "reft_layer": "late"}], ["other the placements"]),
        (f"{GROUP}.vary", {"window": "depth"}, ["grids.depth is missing; config/experiments.yaml sweeps it"]),
        (
            f"{GROUP}.vary",
            {"window": [1]},
            ["arm none {'window': 1}: ", "methods.none (words, tiny): unknown key 'window' (value 1)"],
        ),
        (
            "figures.sweep.groups.0.vary",
            {"window": [0]},
            ["sweep: arm lat_reft {'window': 0}: ", "key 'window' has value 0"],
        ),
        (f"{GROUP}.datsets", ["words"], ["unknown key", "datsets"]),
        ("tables.main.tilte", "x", ["unknown key 'tables.main.tilte'"]),
        ("tabels", {}, ["unknown key 'tabels'", "extra, figures, tables"]),
    ],
)
def test_a_fault_names_file_target_and_what_is_known(path, value, parts, tmp_path):
    message = fault(tmp_path, path, value)
    assert "experiments.yaml" in message
    for part in parts:
        assert part in message


def test_an_attack_leaves_room_for_content(tmp_path):
    with pytest.raises(SettingsError, match="attacks.gcg: tokens 40 leave no room in max_length 40 of words"):
        plan(tmp_path, values=changed(SCALE, "attacks.gcg", {"tokens": 40}))
    plan(tmp_path, values=changed(SCALE, "attacks.gcg", {"tokens": 39}))
    plan(tmp_path, values=changed(SCALE, "attacks.unused", {"kind": "gcg", "tokens": 40}))


def test_a_table_without_a_module_says_where_it_is_looked_for(tmp_path):
    plans = Plans(tmp_path, {"toy": plan(tmp_path)})
    with pytest.raises(
        SettingsError, match=r"tables.main: there is no src/latreft/tables/main.py; a plain table of arms"
    ):
        plans.table_code(SimpleNamespace(scale="toy", table="main"))
    with pytest.raises(SettingsError, match=r"figures.sweep: there is no src/latreft/plots/sweep.py$"):
        plans.figure_code(SimpleNamespace(scale_folder="toy/", figure="sweep"))


def test_unknown_targets_and_arms_are_errors(tmp_path):
    toy = plan(tmp_path)
    with pytest.raises(SettingsError, match="no target is called 'mian'; targets are main, sweep"):
        toy.cells("mian")
    with pytest.raises(SettingsError, match="no target of scale toy wants the arm words/tiny/cat/seed0"):
        toy.arm("words/tiny/cat/seed0")


# --- targets and the data sets of a scale ---

SLIPS = {f"{GROUP}.datasets": "main", "figures.sweep.scores": "sweep", "extra.own": "own"}


def own_table(*datasets):
    groups = [{"datasets": list(datasets), "models": "main", "arms": ["lat"], "attacks": ["gcg"]}]
    return {"title": "Own table", "groups": groups}


def project(root, experiments, *scales):
    """A project's folder with its configuration, a file a scale."""
    (root / "config").mkdir()
    files = {"models": MODELS, "experiments": experiments, **{values["scale"]: values for values in scales}}
    for name, values in files.items():
        (root / "config" / f"{name}.yaml").write_text(yaml.safe_dump(values))
    return root


def renamed(name, *datasets):
    """The toy scale under another name, with other data sets."""
    values = changed(SCALE, "scale", name)
    return changed(values, "datasets", {key: SCALE["datasets"]["words"] for key in datasets})


@pytest.mark.parametrize("path", SLIPS)
def test_a_data_set_that_no_scale_defines_is_an_error(path, tmp_path):
    """Of two scales one need not have a target's data sets; that neither has them is a slip of the pen."""
    value = own_table("words", "wrods") if path == "extra.own" else ["wrods"]
    root = project(tmp_path, changed(EXPERIMENTS, path, value), SCALE, renamed("second", "words", "third"))
    with pytest.raises(SettingsError) as error:
        load_plans(root, {"scale": "toy"})
    known = "the scales define more, third, words"
    assert f"experiments.yaml: {SLIPS[path]}: unknown data set 'wrods'; {known}" in str(error.value)


def test_a_target_is_not_offered_where_its_data_set_is_missing(tmp_path):
    experiments = changed(EXPERIMENTS, "extra.own", own_table("third"))
    experiments = changed(experiments, "figures.kept", {"title": "Neurons kept", "scores": ["words", "third"]})
    root = project(tmp_path, experiments, SCALE, renamed("second", "third"))
    plans = Plans(root, load_plans(root, {"scale": "toy"}))
    toy, second = plans.by_scale["toy"], plans.by_scale["second"]
    assert [name for name, _ in toy.targets()] == ["main", "sweep"]
    assert [name for name, _ in second.targets()] == ["own"]
    assert [arm.dataset for arm in second.all_arms.values()] == ["third", "third"]
    assert all(arm.dataset == "words" for arm in toy.all_arms.values())
    assert {path.split("/")[-1] for path in plans.tables("toy")} == {"main.csv", "main.md", "main.tex"}
    assert {path.split("/")[-1] for path in plans.tables("second")} == {"own.csv", "own.md", "own.tex"}
    assert [path.split("/")[-1] for path in plans.figures("toy")] == ["sweep.pdf", "sweep.png"]
    assert plans.figures("second") == []


def test_asking_for_a_target_that_is_not_offered_names_target_data_set_and_scale_file(tmp_path):
    toy = plan(tmp_path, changed(EXPERIMENTS, "extra.own", own_table("words", "third")))
    with pytest.raises(SettingsError) as error:
        toy.cells("own")
    assert "experiments.yaml: own shows 'third', a data set that config/toy.yaml does not define" in str(error.value)


def test_a_scale_of_other_data_sets_needs_only_what_its_targets_need(tmp_path):
    """No grid, no method and no attack of a target that is not offered."""
    values = renamed("second", "third") | {"methods": {"lat": SCALE["methods"]["lat"]}, "attacks": {"gcg": {}}}
    del values["grids"]
    alone = plan(tmp_path, changed(EXPERIMENTS, "extra.own", own_table("third")), values)
    assert names(alone, "own") == ["third/other/lat/seed0", "third/other/lat/seed1"]


def test_a_target_is_given_the_names_of_what_it_shows_and_no_others(tmp_path):
    """Another data set's title, or another model's, must not remake it."""
    experiments = changed(EXPERIMENTS, "figures.kept", {"title": "Neurons kept", "scores": ["more"]})
    experiments = changed(experiments, "tables.tested", {"title": "Clean accuracy", "classifiers": True})
    experiments = changed(experiments, "tables.counted", {"title": "Texts"})
    toy = plan(tmp_path, changed(experiments, "tables.main.groups.0.models", ["tiny"]))
    named = {target: titles(toy, target) for target in ("main", "sweep", "kept", "tested", "counted")}
    assert named["main"] == {"models": {"tiny": "Tiny"}, "datasets": {"words": "Words"}}
    assert set(named["sweep"]["models"]) == {"tiny", "other"} and set(named["sweep"]["datasets"]) == {"words"}
    assert set(named["kept"]["models"]) == {"tiny", "other"} and set(named["kept"]["datasets"]) == {"more"}
    for target in ("tested", "counted"):
        assert [list(named[target][kind]) for kind in ("models", "datasets")] == [["tiny", "other"], ["words", "more"]]
