"""An attack is one file and one line of configuration; what is wrong with either is said."""

from __future__ import annotations

import subprocess
import sys

import pytest

from latreft.attacks import gcg, random_token, registry
from latreft.settings import SettingsError

NEW_ATTACK = """
from latreft.attacks.base import AttackSettings, Found

class Settings(AttackSettings):
    shout: bool = True

def attack(search, *, label, allowed, encode, generator, settings, survives):
    return Found((1,), 0.0, 1, 1)
"""


def test_paper_strength_is_the_default():
    settings = registry.attack_settings({"kind": "gcg"}, "config.yaml: attacks.gcg")
    assert isinstance(settings, gcg.Settings)
    assert (settings.tokens, settings.rounds, settings.top_k, settings.candidates) == (10, 10, 256, 128)
    assert (settings.placement, settings.start, settings.stop_at_flip) == ("suffix", "!", False)
    draws = registry.attack_settings({"kind": "random_token"}, "x")
    assert (draws.tokens, draws.draws, draws.stop_at_flip) == (10, 500, True)
    assert registry.attack_of(settings) is gcg.attack and registry.attack_of(draws) is random_token.attack


@pytest.mark.parametrize("kind", ["gcgg", "base", "run", "registry", "journal", "../gcg", None, 3])
def test_unknown_kind_lists_the_known_ones(kind):
    with pytest.raises(SettingsError, match="config.yaml: key 'kind' has value .*known kinds.*gcg, random_token"):
        registry.attack_settings({"kind": kind}, "config.yaml")


def test_faults_name_file_key_and_value():
    with pytest.raises(SettingsError, match="f.yaml: key 'kind' is missing"):
        registry.attack_settings({"rounds": 3}, "f.yaml")
    with pytest.raises(SettingsError, match="f.yaml: unknown key 'round' .*rounds"):
        registry.attack_settings({"kind": "gcg", "round": 3}, "f.yaml")
    with pytest.raises(SettingsError, match="'tokens' has value 0"):
        registry.attack_settings({"kind": "gcg", "tokens": 0}, "f.yaml")
    with pytest.raises(SettingsError, match="'placement' has value 'infix'"):
        registry.attack_settings({"kind": "gcg", "placement": "infix"}, "f.yaml")


def test_a_new_attack_is_one_file(tmp_path, monkeypatch):
    (tmp_path / "shouting.py").write_text(NEW_ATTACK)
    (tmp_path / "empty.py").write_text("")
    import latreft.attacks

    monkeypatch.setattr(latreft.attacks, "__path__", [*latreft.attacks.__path__, str(tmp_path)])
    settings = registry.attack_settings({"kind": "shouting", "shout": False}, "f.yaml")
    assert settings.kind == "shouting"
    assert registry.attack_of(settings).__module__ == "latreft.attacks.shouting"
    with pytest.raises(SettingsError, match="empty.py defines no 'Settings'"):
        registry.attack_settings({"kind": "empty"}, "f.yaml")
    sys.modules.pop("latreft.attacks.shouting"), sys.modules.pop("latreft.attacks.empty")


def test_importing_attacks_does_not_import_transformers():
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import latreft.attacks.registry as r, latreft.attacks.run\n"
        "[r.attack_settings({'kind': k}, 'x') for k in r.kinds()]\n"
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
