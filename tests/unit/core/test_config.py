"""Every fault in a configuration is one error with file, key, value and what would be right."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from unit.core.scales import MODELS, SCALE, changed, models, scale

from latreft.config import ModelSettings, load_models, load_scale, read_yaml, scale_files
from latreft.experiments import load_plan
from latreft.models.loading import DTYPES
from latreft.preflight import BYTES
from latreft.settings import SettingsError

CONFIG = Path(__file__).parents[3] / "config"
TOY = "config/toy.yaml"


def fault(folder, path, value, of=MODELS) -> str:
    with pytest.raises(SettingsError) as error:
        scale(folder, changed(SCALE, path, value), of)
    return str(error.value)


@pytest.mark.parametrize("name", sorted(scale_files(CONFIG)))
def test_every_scale_of_the_project_loads_with_every_target(name):
    path = scale_files(CONFIG)[name]
    values = read_yaml(path)
    assert values["scale"] == name
    loaded = load_scale(values, load_models(CONFIG), str(path))
    plan = load_plan(loaded, CONFIG / "experiments.yaml")
    for arm in plan.all_arms.values():
        plan.settings_of(arm)


def test_every_dtype_of_a_model_can_be_loaded_and_has_a_size_on_disk():
    offered = set(get_args(ModelSettings.model_fields["dtype"].annotation))
    assert offered == set(DTYPES) == set(BYTES)
    assert all(DTYPES[name].itemsize == size for name, size in BYTES.items())


def test_autocast_of_a_model_in_float64_is_refused(tmp_path):
    models = changed(MODELS, "other.dtype", "float64")
    scale(tmp_path, SCALE, models)
    message = fault(tmp_path, "autocast", "bfloat16", models)
    assert "config/toy.yaml: autocast is 'bfloat16', but config/models.yaml gives other the dtype 'float64'" in message


def test_the_file_of_the_paper_scale_is_config_yaml():
    files = scale_files(CONFIG)
    assert files["paper"].name == "config.yaml"
    assert not {"config", "models", "experiments", "claims"} & set(files)


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        ("seed", 3, ["unknown key 'seed' (value 3)", "known keys: attacks,", "seeds"]),
        ("finetune", {"lr": 1}, ["unknown key 'finetune.lr' (value 1)"]),
        ("finetune", {"learning_rate": 0}, ["key 'finetune.learning_rate' has value 0", "greater than 0"]),
        ("device", "gpu", ["key 'device' has value 'gpu'", "'auto', 'cpu' or 'cuda'"]),
        ("scale", "My Scale", ["key 'scale' has value 'My Scale'"]),
        ("threads", True, ["key 'threads' has value True: a number is needed"]),
        ("models", "tiny", ["key 'models' has value 'tiny'", "valid list"]),
        ("models", ["tiny", "tny"], ["unknown model 'tny'; config/models.yaml defines other, tiny"]),
        ("main_model", "tny", ["unknown model 'tny'"]),
        ("per_model", {"tny": {}}, ["unknown model 'tny'"]),
        ("per_dataset", {"wrods": {}}, ["per_dataset.wrods names no data set; datasets are more, words"]),
        ("per_model", {"tiny": {"methods": {"lta": {"epsilon": 1}}}}, ["per_model.tiny.methods.lta changes nothing", "lat, lat_reft, none"]),
        ("per_dataset", {"words": {"attacks": {"gcgg": {}}}}, ["per_dataset.words.attacks.gcgg changes nothing", "gcg, weak"]),
        ("methods", {"lta": {}}, ["unknown method 'lta'; known methods: cat, lat, lat_reft, none, r2d2"]),
        ("methods.lat.epsilon", -1, ["methods.lat (words, tiny)", "key 'epsilon' has value -1", "greater than 0"]),
        ("methods.lat.epsilon", 0, ["key 'epsilon' has value 0"]),
        ("methods.lat.epsilon", float("inf"), ["key 'methods.lat.epsilon' has value inf; right is a finite number"]),
        ("grids.window", [1, float("nan")], ["key 'grids.window.1' has value nan"]),
        ("methods.lat_reft.rank", 17, ["methods.lat_reft (words, tiny)", "rank is 17; tiny has hidden states of 16"]),
        ("seeds", [], ["key 'seeds' has value []"]),
        ("seeds", [0, -1], ["key 'seeds.1' has value -1"]),
        ("seeds", [0, 1, 0], ["key 'seeds' has value [0, 1, 0]; right is each seed once"]),
        ("finetune", {"seed": -1}, ["key 'finetune.seed' has value -1"]),
        ("methods.lat.window", 0, ["key 'window' has value 0", "greater than or equal to 1"]),
        ("methods.lat.window", True, ["key 'window' has value True: a number is needed"]),
        ("methods.lat.attack_layer", 99, ["attack_layer is 99; tiny has layers 1 to 4"]),
        ("methods.lat.attack_layer", 0, ["attack_layer is 0; tiny has layers 1 to 4"]),
        ("methods.lat.attack_layer", 1.5, ["attack_layer is 1.5; tiny has layers 1 to 4"]),
        ("methods.lat.attack_layer", True, ["attack_layer is True; tiny has layers 1 to 4"]),
        ("methods.lat.attack_layer", "erly", ["attack_layer is 'erly'", "'early': 1", "'last', or a number from 1 to 4"]),
        ("methods.lat_reft.reft_layer", "late", ["other the placements {'early': 2}", "from 1 to 6"]),
        ("methods.lat_reft.pruning_ratio", 1.2, ["key 'pruning_ratio' has value 1.2", "less than or equal to 1"]),
        ("methods.lat_reft.pruning_rule", "best", ["key 'pruning_rule' has value 'best'", "act_grad"]),
        ("methods.lat_reft.norm", "l1", ["key 'norm' has value 'l1'", "linf"]),
        ("methods.lat_reft.rnak", 4, ["unknown key 'rnak' (value 4)", "rank"]),
        ("methods.lat", {"attack_layer": 1}, ["key 'epsilon' is missing"]),
        ("attacks.pair", {}, ["attacks.pair: key 'kind' has value 'pair'", "gcg", "random_token"]),
        ("attacks.weak.kind", "gcgg", ["attacks.weak: key 'kind' has value 'gcgg'"]),
        ("attacks.weak.rounds", 0, ["attacks.weak: key 'rounds' has value 0"]),
        ("attacks.weak.rouns", 1, ["unknown key 'rouns' (value 1)"]),
        ("datasets.words.label_names", ["a"], ["datasets.words.label_names"]),
        ("datasets.words.source.kind", "web", ["datasets.words.source", "'web'"]),
    ],
)  # fmt: skip
def test_a_fault_names_file_key_value_and_remedy(path, value, parts, tmp_path):
    message = fault(tmp_path, path, value)
    assert message.startswith(TOY)
    for part in parts:
        assert part in message


def test_a_placement_beyond_the_model_is_an_error(tmp_path):
    message = fault(tmp_path, "title", "t", changed(MODELS, "tiny.placements.early", 9))
    assert "tiny.placements.early: 9; the model has layers 1 to 4" in message


@pytest.mark.parametrize(
    ("path", "value", "parts"),
    [
        ("tiny.layers", 0, ["models.yaml: tiny", "key 'layers' has value 0"]),
        ("tiny.dtype", "float16", ["key 'dtype' has value 'float16'", "'float32' or 'bfloat16'"]),
        ("tiny.placements", {"erly": 1}, ["key 'placements.erly"]),
        ("tiny.source.kind", "web", ["'web'", "hub"]),
        ("tiny.source", {"kind": "hub", "repo": "a/b", "revision": "main"}, ["source.hub.revision' has value 'main'"]),
        ("tiny.source", {"kind": "gguf", "package": "p", "version": "1"}, ["source.gguf.file' is missing"]),
        ("tiny.family", "lama", ["models.yaml: tiny.family", "'lama'", "gpt_neox, llama, qwen2"]),
        ("tiny.placements", {"late": 5}, ["tiny.placements.late: 5", "layers 1 to 4"]),
        ("tiny.stray", 1, ["unknown key 'stray' (value 1)"]),
    ],
)
def test_a_fault_in_a_model_names_the_model(path, value, parts, tmp_path):
    with pytest.raises(SettingsError) as error:
        models(tmp_path, changed(MODELS, path, value))
    for part in parts:
        assert part in str(error.value)


def test_settings_go_from_scale_to_model_to_data_set(tmp_path):
    values = changed(
        SCALE, "per_model", {"tiny": {"methods": {"lat": {"epsilon": 2.0, "window": 3}}, "finetune": {"epochs": 7}}}
    )
    values = changed(
        values, "per_dataset", {"more": {"methods": {"lat": {"epsilon": 4.0}}, "attacks": {"weak": {"top_k": 9}}}}
    )
    toy = scale(tmp_path, values)
    found = {
        (d, m): (s := toy.method(d, m, "lat"), s.epsilon, s.window)[1:]
        for d in ("words", "more")
        for m in ("tiny", "other")
    }
    assert found == {
        ("words", "tiny"): (2.0, 3),
        ("words", "other"): (1.0, 20),
        ("more", "tiny"): (4.0, 3),
        ("more", "other"): (4.0, 20),
    }
    assert (toy.finetune("words", "tiny").epochs, toy.finetune("words", "other").epochs) == (7, 3)
    assert (toy.attack("more", "tiny", "weak").top_k, toy.attack("words", "tiny", "weak").top_k) == (9, 256)
    assert toy.method("words", "tiny", "lat", {"epsilon": 9}).epsilon == 9


def test_layers_are_named_for_each_model(tmp_path):
    toy = scale(tmp_path)
    assert [toy.method("words", m, "lat_reft").attack_layer for m in ("tiny", "other")] == [1, 2]
    assert [toy.method("words", m, "lat_reft").reft_layer for m in ("tiny", "other")] == [4, 6]
    assert toy.attack_kind("weak") == "gcg"


def test_unknown_names_asked_of_a_scale_are_errors(tmp_path):
    toy = scale(tmp_path)
    with pytest.raises(SettingsError, match="config/toy.yaml: unknown method 'cat'; methods are lat, lat_reft, none"):
        toy.method("words", "tiny", "cat")
    with pytest.raises(SettingsError, match="config/toy.yaml: unknown attack 'pair'; attacks are gcg, weak"):
        toy.attack("words", "tiny", "pair")
    with pytest.raises(
        SettingsError, match="config/toy.yaml: grids.depth is missing; config/experiments.yaml sweeps it"
    ):
        toy.grid("depth")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1", "x.yaml: not valid YAML: .*line"),
        ("a:\n  b: 1\n  b: 2", "x.yaml: not valid YAML: key 'b' stands twice .*line 3"),
        ("- 1", "expected keys and values at the top level, found list"),
        ("", "found NoneType"),
    ],
)
def test_a_file_that_is_not_yaml_keys_is_one_error(text, message, tmp_path):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(SettingsError, match=message) as error:
        read_yaml(tmp_path / "x.yaml")
    assert "\n" not in str(error.value)
