"""A release has the version of its tag, the workflows match the pages, and the archives depend only on the commit."""

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
import versioningit
import yaml

from penstock_distribution import NAME
from publish.release import ReleaseError, check_changes, digests, notes, version_of
from publish.sbom import complete

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = ROOT / ".github" / "workflows"
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text())
    return found


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the project's settings for versions and changes, one commit, and no tag."""
    for name in ("pyproject.toml", "setup.py", "CHANGELOG.md", "changes/README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@penstock.invalid")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--allow-empty", "--message", "One more")


def towncrier(folder: Path, version: str) -> None:
    command = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version, "--date", "2026-12-01"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def test_the_version_is_that_of_the_tag(repository: Path) -> None:
    commit(repository)
    assert re.fullmatch(r"0\.1\.0\.dev1\+g[0-9a-f]+", versioningit.get_version(repository)), "before the first release"
    git(repository, "tag", "v0.1.0")
    assert versioningit.get_version(repository) == "0.1.0"
    (repository / "CHANGELOG.md").write_text("changed")
    assert re.fullmatch(r"0\.2\.0\.dev0\+g[0-9a-f]+\.dirty", versioningit.get_version(repository))
    commit(repository)
    git(repository, "tag", "build-7")
    assert re.fullmatch(r"0\.2\.0\.dev1\+g[0-9a-f]+", versioningit.get_version(repository)), "no tag of a version"


def test_a_shallow_clone_reports_that_its_version_is_unknown(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture
) -> None:
    git(repository, "tag", "v7.1.0")
    commit(repository)
    clone = tmp_path_factory.mktemp("clones") / "clone"
    git(clone.parent, "clone", "--depth", "1", repository.as_uri(), str(clone))
    assert re.fullmatch(r"0\+shallow\.g[0-9a-f]+", versioningit.get_version(clone))
    assert "git fetch --unshallow --tags" in caplog.text
    (clone / "CHANGELOG.md").write_text("changed")
    assert re.fullmatch(r"0\+shallow\.g[0-9a-f]+\.dirty", versioningit.get_version(clone))
    git(clone, "checkout", "CHANGELOG.md")
    git(clone, "fetch", "--unshallow", "--tags")
    assert re.fullmatch(r"7\.2\.0\.dev1\+g[0-9a-f]+", versioningit.get_version(clone))


def test_a_shallow_clone_of_a_release_has_its_version(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    git(repository, "tag", "v7.1.0")
    clone = tmp_path_factory.mktemp("clones") / "clone"
    git(clone.parent, "clone", "--depth", "1", "--branch", "v7.1.0", repository.as_uri(), str(clone))
    assert versioningit.get_version(clone) == "7.1.0"


def test_an_sdist_of_a_shallow_clone_needs_no_git(repository: Path) -> None:
    """An sdist has setup.py, and its version in PKG-INFO."""
    shutil.rmtree(repository / ".git")
    (repository / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: penstock-streams\nVersion: 0+shallow.g12ab\n")
    assert versioningit.get_version(repository) == "0+shallow.g12ab"


def test_files_without_git_have_no_version(repository: Path) -> None:
    shutil.rmtree(repository / ".git")
    assert versioningit.get_version(repository) == "0+unknown"


def test_the_version_of_an_sdist() -> None:
    assert version_of(Path("dist/penstock_streams-0.1.0.dev5+g12ab.tar.gz")) == "0.1.0.dev5+g12ab"


def test_news_fragments_become_a_section_of_the_changelog(repository: Path) -> None:
    (repository / "changes" / "42.added.md").write_text("Traces ([Traces](docs/traces.md)).\n")
    (repository / "changes" / "+typo.fixed.md").write_text("A spelling.\n")
    commit(repository)
    with pytest.raises(
        ReleaseError, match=r"no section \[7\.1\.0\]; changes/\+typo\.fixed\.md is not in it; changes/42"
    ):
        check_changes("7.1.0", repository)
    old = notes("Unreleased", repository)
    towncrier(repository, "7.1.0")
    check_changes("7.1.0", repository)
    news = "### Added\n\n- Traces ([Traces](docs/traces.md)). (#42)\n\n### Fixed\n\n- A spelling."
    assert notes("7.1.0", repository).startswith(news)
    assert notes("7.1.0", repository).endswith(old)
    (repository / "changes" / "43.added.md").write_text("Late.\n")
    with pytest.raises(ReleaseError, match=r"CHANGELOG\.md: changes/43\.added\.md is not in it: towncrier build"):
        check_changes("7.1.0", repository)


def test_only_known_kinds_of_news_fragments_exist() -> None:
    known = {each["directory"] for each in SETTINGS["tool"]["towncrier"]["type"]}
    names = [path.name for path in (ROOT / "changes").iterdir() if path.name != "README.md"]
    assert not [name for name in names if not re.fullmatch(rf"(\d+|\+[\w-]+)\.({'|'.join(known)})\.md", name)]


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
    built = SETTINGS["tool"]["cibuildwheel"]["build"]
    assert built == [f"cp{python.replace('.', '')}-*" for python in pythons]


def test_scripts_that_workflows_run_exist() -> None:
    for path in WORKFLOWS.glob("*.yml"):
        scripts = set(re.findall(r"(?<!/)\bbin/[a-z-]+", path.read_text()))
        assert all(os.access(ROOT / script, os.X_OK) for script in scripts), path.name


def test_only_the_upload_has_write_permissions() -> None:
    for name in ("tests", "release"):
        assert workflow(name)["permissions"] == {"contents": "read"}
    jobs = workflow("release")["jobs"]
    assert [job for job, settings in jobs.items() if "permissions" in settings] == ["publish"]
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert {"attestations": True} in [step.get("with") for step in jobs["publish"]["steps"]]


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_forms_are_valid(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert {field["type"] for field in form["body"]} <= {"markdown", "textarea", "input"}
    assert all("label" in field["attributes"] for field in form["body"] if field["type"] != "markdown")


def test_the_contents_of_the_citation_file() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert {"title", "authors", "message", "license"} <= citation.keys()


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    for name, text in (("a.whl", b"x"), ("b.whl", b"y")):
        (tmp_path / name).write_bytes(text)
    one, other = digests([tmp_path / "a.whl", tmp_path / "b.whl"]).values()
    assert one != other


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_builds_of_a_release_are_identical() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "publish.release", "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    built = rf"{NAME} {re.escape(versioningit.get_version(ROOT))} is built, the same bytes twice; nothing was uploaded"
    assert re.search(built, done.stdout)
