"""One finished copy of the project a session, and one copy of it a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workflow.project import Project, Server, copy_project, new_project


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Project:
    """The project with every target of the mini scale built; tests only read it."""
    project = new_project(tmp_path_factory.mktemp("finished") / "the project", server)
    said = project.run()
    assert said.code == 0, said.text[-4000:]
    return project


@pytest.fixture
def project(tmp_path: Path, finished: Project) -> Project:
    """A copy of the finished project, for one test."""
    return copy_project(finished, tmp_path / "the project")
