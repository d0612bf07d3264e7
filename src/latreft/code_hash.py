"""The hash of the code that a job really runs: it changes with the code's meaning, not with comments or layout."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = "latreft"
SOURCE = Path(__file__).resolve().parents[1]


def _file_of(module: str) -> Path | None:
    """The source file of a module of this package; None for names that are no module."""
    path = SOURCE.joinpath(*module.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


class _WithoutDocstrings(ast.NodeTransformer):
    """Drops docstrings, so that explaining code better does not rerun it."""

    def _strip(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        body = node.body  # type: ignore[attr-defined]
        first = body[0] if body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _strip


@cache
def _parsed(path: Path) -> tuple[str, frozenset[str]]:
    """A file's meaning (syntax tree without docstrings and places) and the package's modules it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imported.add(node.module)
            imported.update(f"{node.module}.{alias.name}" for alias in node.names)
    own = frozenset(name for name in imported if name.split(".")[0] == PACKAGE and _file_of(name) is not None)
    return ast.unparse(_WithoutDocstrings().visit(tree)), own


def modules_used(script: str | Path, modules: Iterable[str] = ()) -> list[str]:
    """The package's modules that ``script`` and ``modules`` import, directly or not, sorted.

    Modules that are imported by a computed name have to be given in ``modules``.
    """
    found: set[str] = set()
    waiting = {*_parsed(Path(script))[1], *modules}
    while waiting:
        name = waiting.pop()
        found.add(name)
        path = _file_of(name)
        if path is None:
            raise FileNotFoundError(f"{name} is no module of {SOURCE}")
        parents = {name.rsplit(".", depth)[0] for depth in range(1, name.count(".") + 1)}
        waiting |= (_parsed(path)[1] | parents) - found
    return sorted(found)


def code_hash(script: str | Path, modules: Iterable[str] = ()) -> str:
    """Short hash of a script and of all of the package's code that it uses."""
    digest = hashlib.sha256(_parsed(Path(script))[0].encode())
    for name in modules_used(script, modules):
        path = _file_of(name)
        assert path is not None
        digest.update(name.encode() + _parsed(path)[0].encode())
    return digest.hexdigest()[:16]
