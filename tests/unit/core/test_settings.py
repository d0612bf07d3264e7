"""Settings errors name the place, the key, the value and what would be right."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import yaml
from pydantic import Field, PositiveInt, ValidationError

from latreft.settings import Settings, SettingsError, validate


class Inner(Settings):
    depth: int = 1


class Example(Settings):
    rate: Annotated[float, Field(gt=0)] = 0.1
    count: PositiveInt
    limit: Annotated[float, Field(gt=0)] | None = None
    flag: bool = False
    free: dict[str, Any] = {}
    inner: Inner = Inner()


def fault(**values) -> str:
    with pytest.raises(SettingsError) as error:
        validate(Example, {"count": 1} | values, "config/x.yaml: part")
    return str(error.value)


def test_right_values_are_taken_and_cannot_be_changed():
    settings = validate(Example, {"count": 2, "rate": 1, "limit": None, "flag": True, "free": {"a": True}}, "x")
    assert (settings.count, settings.rate, settings.flag) == (2, 1.0, True)
    with pytest.raises(ValidationError):
        settings.count = 3


def test_an_unknown_key_lists_the_known_ones():
    message = fault(cuont=3)
    assert message.startswith("config/x.yaml: part: unknown key 'cuont' (value 3); known keys: ")
    assert "count, flag, free, inner, limit, rate" in message
    assert "unknown key 'inner.dpeth' (value 3)" in fault(inner={"dpeth": 3})


def test_a_missing_key_a_bad_value_and_all_faults_at_once_are_named():
    with pytest.raises(SettingsError, match="key 'count' is missing; it has no default and must be given"):
        validate(Example, None, "x")
    assert "key 'rate' has value -1: Input should be greater than 0" in fault(rate=-1)
    both = fault(rate="fast", count=0)
    assert "key 'rate' has value 'fast'" in both
    assert "key 'count' has value 0" in both


@pytest.mark.parametrize("key", ["rate", "count", "limit"])
@pytest.mark.parametrize("value", [True, False])
def test_true_and_false_are_no_numbers(key, value):
    assert f"key '{key}' has value {value}: a number is needed, not true or false" in fault(**{key: value})


def test_true_in_a_nested_section_is_named_too():
    assert "key 'depth' has value True" in fault(inner={"depth": True})


def test_a_rate_that_yaml_reads_as_text_is_the_number():
    values = yaml.safe_load("{rate: 1e-5, count: 1}")
    assert isinstance(values["rate"], str)
    assert validate(Example, values, "x").rate == 1e-5
