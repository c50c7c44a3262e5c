"""The workflows are valid, and the commands of their steps work; actions and GitHub's own services are not run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator_tools import tool

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
#: The jobs whose commands run here. The others run all tests, or are two lines each (wheels and upload).
JOBS = [("release", "sdist"), ("tests", "charts"), ("tests", "site")]


def steps(workflow: str, job: str) -> list[dict[str, Any]]:
    """Return the steps of a job that run commands."""
    found = yaml.safe_load((WORKFLOWS / f"{workflow}.yml").read_text())["jobs"][job]["steps"]
    return [step for step in found if "run" in step]


def test_the_workflows_are_valid() -> None:
    done = subprocess.run([tool("actionlint"), "-no-color"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_job_is_run_here_or_listed_as_not_run() -> None:
    jobs = {
        (path.stem, job)
        for path in WORKFLOWS.glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"]
        if steps(path.stem, job)
    }
    assert jobs == {*JOBS, ("tests", "tests"), ("release", "wheels"), ("release", "publish")}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone of the last commit, and an environment whose pip replaces the runner's."""
    folder = tmp_path_factory.mktemp("runner")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "work"], check=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "python"], check=True)
    return folder / "work"


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("workflow", "job"), JOBS)
def test_the_commands_of_a_job_work(checkout: Path, workflow: str, job: str) -> None:
    """Run as by a runner: bash, with -e and pipefail, in the checkout."""
    variables = os.environ | {
        "PATH": f"{checkout.parent / 'python' / 'bin'}:{os.environ['PATH']}",
        "TAG": "--dry-run",  # an expression that depends on a tag
    }
    for step in steps(workflow, job):
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=checkout,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{step['run']}\n{done.stdout}{done.stderr}"
    if job == "sdist":
        assert [path.suffixes[-1] for path in sorted((checkout / "dist").iterdir())] == [".whl", ".gz"]
        assert (checkout / "penstock-streams.cdx.json").stat().st_size > 1_000
        assert [path.suffix for path in (checkout / "chart").iterdir()] == [".tgz"]
