"""Discrete attacks on the input: one file an attack, placed as a suffix or as a prefix."""
