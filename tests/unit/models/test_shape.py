from __future__ import annotations

from pathlib import Path

import pytest

from latreft.config import RandomModel, load_models
from latreft.models.shape import check_shape
from latreft.settings import SettingsError

MODELS = load_models(Path(__file__).parents[3] / "config")
SHAPE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def test_the_shapes_of_the_project_are_known():
    shapes = [model for model in MODELS.values() if isinstance(model.source, RandomModel)]
    assert shapes
    for model in shapes:
        check_shape(model.family, model.source.shape, "here")


@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt_neox"])
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"hiden_size": 96},
            "here.hiden_size: the configuration of family {} has no such key; did you mean hidden_size?",
        ),
        ({"num_attention_heads": 5}, "here.hidden_size: 64 is no multiple of num_attention_heads, 5"),
        ({"hidden_size": 64.5}, "here.hidden_size: 64.5 is no whole number above 0"),
        ({"num_attention_heads": 0}, "here.num_attention_heads: 0 is no whole number above 0"),
    ],
)
def test_a_shape_that_makes_another_model_is_an_error(family, change, said):
    with pytest.raises(SettingsError) as error:
        check_shape(family, SHAPE | change, "here")
    assert str(error.value) == said.format(family)


def test_heads_of_keys_and_values_divide_those_of_queries():
    with pytest.raises(SettingsError, match="num_attention_heads: 4 is no multiple of num_key_value_heads, 3"):
        check_shape("llama", SHAPE | {"num_key_value_heads": 3}, "here")


@pytest.mark.parametrize("key", ["sliding_window", "use_sliding_window"])
def test_a_sliding_window_is_refused(key):
    with pytest.raises(SettingsError, match="every position must see all earlier ones"):
        check_shape("qwen2", SHAPE | {"num_key_value_heads": 2, key: 8}, "here")
