"""Defenses are found by name; what is none says so."""

from __future__ import annotations

import sys
import types

import pytest
from unit.defenses.arms import SETTINGS

from latreft.defenses.registry import defense_module, methods
from latreft.settings import SettingsError


def test_every_method_is_found_and_nothing_else():
    assert methods() == sorted(SETTINGS)
    for method in methods():
        module = defense_module(method, "config/x.yaml")
        assert callable(module.train)
        assert module.Settings(**SETTINGS[method])


@pytest.mark.parametrize("name", ["lta", "base", "saved", "registry", ""])
def test_an_unknown_method_lists_the_known_ones(name):
    with pytest.raises(
        SettingsError, match=f"config/x.yaml: unknown method '{name}'; known methods: cat, lat, lat_reft"
    ):
        defense_module(name, "config/x.yaml")


def test_a_module_without_train_says_what_is_missing(monkeypatch):
    stray = types.ModuleType("latreft.defenses.cat")
    stray.Settings, stray.__file__ = object, "cat.py"
    monkeypatch.setitem(sys.modules, "latreft.defenses.cat", stray)
    with pytest.raises(SettingsError, match="cat.py defines no 'train'"):
        defense_module("cat", "config/x.yaml")
