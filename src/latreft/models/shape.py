"""Whether the shape of a model with random weights is one that its family knows; asked before it is made."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from latreft.models.families import family
from latreft.settings import SettingsError


def check_shape(family_name: str, shape: Mapping[str, Any], where: str) -> None:
    """Raise :class:`SettingsError` for a key that the family's configuration does not have, sizes that do not fit
    together, or attention that does not see all earlier positions.

    Transformers keeps keys that it does not know, and makes a model of its default size.
    """
    defaults = vars(family(family_name).config())
    for key in sorted(set(shape) - set(defaults)):
        near = difflib.get_close_matches(key, defaults, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise SettingsError(f"{where}.{key}: the configuration of family {family_name} has no such key{hint}")
    whole = defaults | dict(shape)
    for multiple, divisor in (("hidden_size", "num_attention_heads"), ("num_attention_heads", "num_key_value_heads")):
        larger, smaller = whole[multiple], whole.get(divisor)
        for key, value in ((multiple, larger), (divisor, smaller)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise SettingsError(f"{where}.{key}: {value!r} is no whole number above 0")
        if smaller is not None and larger % smaller:
            raise SettingsError(f"{where}.{multiple}: {larger} is no multiple of {divisor}, {smaller}")
    if shape.get("sliding_window") is not None or shape.get("use_sliding_window"):
        raise SettingsError(
            f"{where}.sliding_window: every position must see all earlier ones; leave it out, or set it to null"
        )
