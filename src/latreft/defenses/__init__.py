"""Defenses, one file a method. Each file has ``Settings`` (its settings) and ``train`` (its algorithm)."""
