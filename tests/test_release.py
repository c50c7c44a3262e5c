"""A release says one version everywhere, the workflows fit the pages, and the archives depend on the commit alone."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock_distribution import NAME, VERSION
from publish.release import ReleaseError, check_versions, digests, notes
from publish.sbom import complete

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A copy of the files that name the version."""
    for name in ("CITATION.cff", "CHANGELOG.md", "deploy/helm/penstock/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_all_places_name_one_version() -> None:
    check_versions(None)


def test_a_tag_of_another_version_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text(f"# Changelog\n\n## [{VERSION}] - 2026-12-01\n\n- First.\n")
    check_versions(f"v{VERSION}", repository)
    with pytest.raises(ReleaseError, match=rf"the tag is v9\.9, .*VERSION is {re.escape(VERSION)}"):
        check_versions("v9.9", repository)


def test_a_place_with_another_version_is_named(repository: Path) -> None:
    chart = repository / "deploy" / "helm" / "penstock" / "Chart.yaml"
    chart.write_text(chart.read_text().replace(f"\nversion: {VERSION}", "\nversion: 9.9.9"))
    with pytest.raises(ReleaseError, match=r"Chart\.yaml does not say"):
        check_versions(None, repository)


def test_a_release_without_a_section_in_the_changelog_is_refused(repository: Path) -> None:
    (repository / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n- More.\n\n## [0.0.1]\n\n- Old.\n")
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md has no section"):
        check_versions(f"v{VERSION}", repository)
    assert notes(repository, "0.0.1") == "- Old."
    assert notes(repository, "Unreleased") == "- More."


def test_the_bill_of_materials_names_the_native_libraries() -> None:
    bill = complete({"bomFormat": "CycloneDX", "components": [{"name": "click"}]})
    assert [component["name"] for component in bill["components"]] == ["click", "librdkafka", "rocksdb"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", each["version"]) for each in bill["components"][1:])


def test_the_matrix_has_every_python_and_every_broker() -> None:
    matrix = workflow("tests")["jobs"]["tests"]["strategy"]["matrix"]
    pythons = re.findall(r"Python :: (3\.\d+)$", SETUP["metadata"]["classifiers"], re.MULTILINE)
    assert set(pythons) <= set(matrix["python"])
    locks = {path.stem.removeprefix("broker-") for path in (ROOT / "penstock" / "dev").glob("broker-*.lock")}
    assert {each["kafka"] for each in matrix["include"]} == locks
    newest = re.search(r"Kafka (\d+\.\d+\.\d+)", (ROOT / "penstock" / "dev" / "broker.lock").read_text())
    assert newest is not None
    assert matrix["kafka"] == [newest[1]]


def test_wheels_are_built_for_every_python_of_the_matrix() -> None:
    pythons = workflow("tests")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{python.replace('.', '')}-*" for python in pythons]


def test_scripts_that_workflows_run_exist() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        scripts = set(re.findall(r"\bbin/[a-z-]+", path.read_text())) - {"bin/penstock", "bin/python"}
        assert all(os.access(ROOT / script, os.X_OK) for script in scripts), path.name


def test_only_the_upload_may_do_more_than_read() -> None:
    for name in ("tests", "release"):
        assert workflow(name)["permissions"] == {"contents": "read"}
    jobs = workflow("release")["jobs"]
    assert [job for job, settings in jobs.items() if "permissions" in settings] == ["publish"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert jobs["publish"]["steps"][-1]["with"] == {"attestations": True}


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_forms_are_forms(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert {field["type"] for field in form["body"]} <= {"markdown", "textarea", "input"}
    assert all("label" in field["attributes"] for field in form["body"] if field["type"] != "markdown")


def test_what_the_citation_names() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["version"], citation["type"]) == ("1.2.0", VERSION, "software")
    assert {"title", "authors", "message", "license"} <= citation.keys()


def test_a_differing_file_has_another_digest(tmp_path: Path) -> None:
    for name, text in (("a.whl", b"x"), ("b.whl", b"y")):
        (tmp_path / name).write_bytes(text)
    one, other = digests([tmp_path / "a.whl", tmp_path / "b.whl"]).values()
    assert one != other


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_is_built_with_the_same_bytes_twice() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "publish.release", "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"{NAME} {VERSION} is built, the same bytes twice; nothing was uploaded." in done.stdout
