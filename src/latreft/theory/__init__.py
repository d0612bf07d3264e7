"""Numeric checks of the paper's theorems, one file a statement [Sec. 5, App. D]; ``docs/theory.md`` has the findings."""
