"""Published evidence: a scale's results in ``published/SCALE``, small enough for git, from which tables are redrawn.

``publish`` makes the folder, ``restore`` turns it back into results, ``redraw`` builds tables and figures from them,
``rates`` recomputes every rate from its examples.
"""
