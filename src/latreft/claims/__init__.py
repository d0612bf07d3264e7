"""The paper's claims and the verdict on each, from records; ``config/claims.yaml`` says what counts as reproduced.

``settings`` reads that file, ``wanted`` says which runs a scale's verdicts need, ``runs`` reads them, ``comparison``,
``arithmetic``, ``patterns`` and ``quantities`` make values of them, ``verdict`` judges the values, ``ledger`` shows it.
"""
