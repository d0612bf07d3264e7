"""Install the project's pinned dependencies (pyproject.toml) into the environment that runs this file."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Dependencies and test tools first; then pyreft and pyvene, whose own pins are of 2024, without theirs."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    pinned = [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["test"]]
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, *pinned], check=True)
    subprocess.run([*pip, "--no-deps", *project["tool"]["latreft"]["without_dependencies"]], check=True)


if __name__ == "__main__":
    main()
