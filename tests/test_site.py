"""The site: all pages are included, the reference has all public names, and broken links are detected."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import penstock
from publish.links import broken_links
from publish.site import Stage, reference, site_url, write_llms, write_reference
from publish.versions import add_version
from tests.test_docs import anchors

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}


def pages_of(nav: Any) -> set[str]:
    """Return the pages of a navigation, whose entries are text, lists, and lists with titles."""
    if isinstance(nav, str):
        return {nav}
    return {page for each in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(each)}


def test_every_page_is_in_the_navigation_and_in_the_index() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert pages_of(nav) == PAGES | {"reference/index.md"}
    listed = set(re.findall(r"\]\((\S+?\.md)\)", (ROOT / "docs" / "index.md").read_text()))
    assert PAGES - {"index.md"} <= listed


def test_linked_files_of_a_page_are_included(tmp_path: Path) -> None:
    Stage(tmp_path).gather()
    assert (tmp_path / "project" / "index.md").read_text().startswith("# Penstock")
    assert (tmp_path / "project" / "examples" / "container" / "index.md").exists()
    for page in tmp_path.rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.M | re.S)):
            target, _, anchor = link.partition("#")
            if target and "://" not in link and not link.startswith("mailto:"):
                found = (page.parent / target).resolve()
                assert found.is_file(), f"{page.relative_to(tmp_path)} links {link}"
                assert not anchor or found.suffix != ".md" or anchor in anchors(found), f"{page.name} links {link}"


def test_the_reference_has_every_public_name(tmp_path: Path) -> None:
    names = [name for group in reference().values() for name in group]
    assert names == penstock.__all__
    write_reference(tmp_path)
    text = "".join(page.read_text() for page in tmp_path.glob("*.md"))
    assert set(re.findall(r"^::: penstock\.(\w+)$", text, re.MULTILINE)) == {*names, "testing"}


def test_llms_txt_lists_the_pages_and_the_full_one_has_them(tmp_path: Path) -> None:
    write_llms(tmp_path, site_url())
    index, full = ((tmp_path / name).read_text() for name in ("llms.txt", "llms-full.txt"))
    assert index.startswith("# Penstock\n\n> Penstock is Kafka Streams for Python.")
    for page in PAGES - {"index.md"}:
        assert f"{site_url()}{page.removesuffix('.md')}/)" in index, page
        assert (ROOT / "docs" / page).read_text() in full, page


def test_a_broken_link_is_detected(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">x</h1><a href="#top"></a><a href="sub/"></a><a href="sub/#there"></a><a href="https://x/"></a>'
        '<a href="#none"></a><a href="sub/#none"></a><img src="none.svg"><a href="none/"></a>'
    )
    (tmp_path / "sub" / "index.html").write_text('<p id="there"></p><a href="..">up</a>')
    assert broken_links(tmp_path) == [f"index.html: {link}" for link in ("#none", "none.svg", "none/", "sub/#none")]


def test_the_sites_of_versions_exist_side_by_side(tmp_path: Path) -> None:
    html, sites = tmp_path / "html", tmp_path / "sites"
    html.mkdir()
    sites.mkdir()

    def add(version: str) -> dict[str, list[str]]:
        (html / "index.html").write_text(version)
        add_version(sites, html, version)
        found = json.loads((sites / "versions.json").read_text())
        assert all((sites / each["version"] / "index.html").exists() for each in found)
        return {each["version"]: each["aliases"] for each in found}

    assert add("0.1.0.dev5+g12ab") == {"dev": ["latest"]}
    assert add("0.9.0") == {"0.9": ["latest"], "dev": []}
    assert add("0.10.0") == {"0.10": ["latest"], "0.9": [], "dev": []}
    assert add("0.9.1") == {"0.10": ["latest"], "0.9": [], "dev": []}
    assert (sites / "0.9" / "index.html").read_text() == "0.9.1"
    assert (sites / "latest" / "index.html").read_text() == "0.10.0"
    assert 'url=latest/"' in (sites / "index.html").read_text()
    assert list(add("0.11.0.dev1+g12ab")) == ["0.10", "0.9", "dev"]
    assert (sites / "dev" / "index.html").read_text() == "0.11.0.dev1+g12ab"


@pytest.mark.long
@pytest.mark.skipif(find_spec("zensical") is None, reason="bin/docs installs what builds the site")
def test_the_site_is_built_within_a_minute() -> None:
    done = subprocess.run([ROOT / "bin" / "docs"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "; 0 broken links" in done.stdout
    seconds = re.search(r" (\d+) s; ", done.stdout)
    assert seconds is not None
    assert int(seconds[1]) < 60


def test_index_and_navigation_agree_on_the_kind_of_each_page() -> None:
    """Tutorial, how-to, reference, explanation."""
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    kinds = {title: pages_of(pages) - {"reference/index.md"} for part in nav[1:] for title, pages in part.items()}
    sections = re.findall(
        r"^## (.+?)\n(.*?)(?=^## )", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE | re.DOTALL
    )
    listed = {title: set(re.findall(r"^\| \[.*?\]\((\S+?)\)", text, re.MULTILINE)) & PAGES for title, text in sections}
    assert listed == kinds
    assert list(kinds) == ["Tutorial", "How-to", "Reference", "Explanation"]
