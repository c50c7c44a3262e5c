"""The site of the documentation, in build/site: ``python -m publish.site``, or ``bin/docs`` with what that needs.

The pages are those of docs/, as they are read in the repository. Pages and files outside of docs/ that they link are
brought along, the API reference is made from docstrings, and llms.txt and llms-full.txt hold it all as text.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import versioningit

from publish.links import broken_links
from publish.versions import add_version, folder_of

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "site"
#: As in zensical.toml.
STAGE, HTML = SITE / "docs", SITE / "html"
#: Where on the site files are that are not below docs/.
OUTSIDE = "project"
_LINK = re.compile(r"\[((?:[^\[\]]|\n)*)\]\(([^)\s]+)\)")
_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_INDEX_ROW = re.compile(r"^\| \[(.+?)\]\((\S+?\.md)\) \| (.*) \|$", re.MULTILINE)
_GROUP = re.compile(r"^    # (.+)$|^    \"(\w+)\",$", re.MULTILINE)


def place(path: Path) -> Path:
    """Return where on the site a file of the repository is, relative to its root."""
    inside = path.relative_to(ROOT)
    if inside.name == "README.md":  # Zensical makes an index of a README: one page at each address
        inside = inside.with_name("index.md")
    return Path(*inside.parts[1:]) if inside.parts[0] == "docs" else Path(OUTSIDE, inside)


class Stage:
    """Gathers the pages, with those that they link, in a folder that is emptied before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[Path] = []
        self._taken: set[Path] = set()

    def gather(self) -> None:
        """Write all pages; raises FileNotFoundError for a link to a missing file."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in sorted(path for path in (ROOT / "docs").rglob("*") if path.is_file()):
            self._take(path)
        while self._waiting:
            self._write(self._waiting.pop())

    def _take(self, path: Path) -> None:
        if path not in self._taken:
            self._taken.add(path)
            self._waiting.append(path)

    def _write(self, path: Path) -> None:
        target = self.folder / place(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            parts = _FENCED.split(path.read_text())
            target.write_text("".join(p if p.startswith("```") else self._relinked(p, path) for p in parts))
        else:
            shutil.copyfile(path, target)

    def _relinked(self, text: str, page: Path) -> str:
        return _LINK.sub(lambda found: self._link(found[1], found[2], page), text)

    def _link(self, text: str, link: str, page: Path) -> str:
        target, hash_, anchor = link.partition("#")
        if not target or "://" in link or link.startswith("mailto:"):
            return f"[{text}]({link})"
        path = (page.parent / target).resolve()
        if path.is_dir():
            path /= "README.md"
            if not path.exists():  # a folder is a page only where it says what it has
                return text
        self._take(path)
        return f"[{text}]({os.path.relpath(place(path), place(page).parent)}{hash_}{anchor})"


def reference() -> dict[str, list[str]]:
    """Return the public names by group, as ``penstock.__all__`` groups them."""
    source = (ROOT / "penstock" / "__init__.py").read_text()
    groups: dict[str, list[str]] = {}
    for found in _GROUP.finditer(source[source.index("__all__ = [") :]):
        if found[1]:
            names = groups.setdefault(found[1][0].upper() + found[1][1:], [])
        else:
            names.append(found[2])
    return groups


def write_reference(folder: Path) -> None:
    """Write the pages of the API reference: mkdocstrings fills them."""
    folder.mkdir(parents=True, exist_ok=True)
    index = [
        "# API reference",
        "",
        "From the docstrings of `penstock`. The other pages explain how things work together.",
        "",
    ]
    groups = {**reference(), "Testing": ["testing"]}
    for title, names in groups.items():
        page = title.lower().replace(" ", "-").replace(",", "") + ".md"
        text = "".join(f"::: penstock.{name}\n\n" for name in names)
        (folder / page).write_text(f"# {title}\n\n{text}")
        index.append(f"- [{title}]({page}): {', '.join(f'`{name}`' for name in names)}")
    (folder / "index.md").write_text("\n".join(index) + "\n")


def write_llms(folder: Path, site_url: str) -> None:
    """Write llms.txt (llmstxt.org: what the pages are) and llms-full.txt (all of them)."""
    index = (ROOT / "docs" / "index.md").read_text()
    rows = _INDEX_ROW.findall(index)
    summary = next(line for line in index.splitlines() if line and not line.startswith("#"))
    lines = ["# Penstock", "", f"> {summary}", "", "## Documentation", ""]
    lines += [f"- [{title}]({site_url}{page.removesuffix('.md')}/): {what}" for title, page, what in rows]
    (folder / "llms.txt").write_text("\n".join(lines) + "\n")
    pages = [(ROOT / "README.md").read_text(), *((ROOT / "docs" / page).read_text() for _, page, _ in rows)]
    (folder / "llms-full.txt").write_text("\n\n".join(pages))


def site_url() -> str:
    """Return the address of the site, which ends with a slash."""
    found = re.search(r'^site_url = "(.*/)"$', (ROOT / "zensical.toml").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("zensical.toml has no site_url that ends with a slash")
    return found[1]


def stage() -> None:
    """Gather all that the site is built from."""
    Stage(STAGE).gather()
    write_reference(STAGE / "reference")
    write_llms(STAGE, site_url())


def main(arguments: list[str]) -> int:
    """Build the site, and check its links. Returns the exit code."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="put it among the sites of other versions")
    into: Path | None = parser.parse_args(arguments).into
    began = time.monotonic()
    stage()
    version = versioningit.get_version(ROOT)
    # Zensical's own switch for a site that is one of several: its address then has the version.
    of_several = {} if into is None else {"MIKE_DOCS_VERSION": folder_of(version)}
    # Strict: a missing page or a name without docstring is an error.
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    built = subprocess.run(command, cwd=ROOT, env=os.environ | of_several, check=False)
    if built.returncode:
        return built.returncode
    broken = broken_links(HTML)
    for line in broken:
        print(line, file=sys.stderr)
    if into is not None and not broken:
        into.mkdir(parents=True, exist_ok=True)
        add_version(into, HTML, version)
    pages = len(list(HTML.rglob("*.html")))
    print(f"{pages} pages in {HTML.relative_to(ROOT)}, {time.monotonic() - began:.0f} s; {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
