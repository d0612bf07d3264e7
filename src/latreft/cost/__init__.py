"""What a training step costs: the paper's formulas, one rule for all methods, and what was measured.

``shapes`` counts parameters exactly, ``paper`` holds Appendix E as printed, ``uniform`` charges every method by the
same rule, ``measured`` counts the operators that ran, ``ledgers`` puts the three side by side. See ``docs/cost.md``.
"""
