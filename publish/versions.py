"""The sites of several versions side by side, with the list from which the theme's selector chooses: versions.json.

The layout is mike's, whose name the theme knows: a folder for each version, and ``latest`` for the newest release.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

#: The folder of what is not released.
DEV = "dev"
LATEST = "latest"
_REDIRECT = '<!doctype html><title>Penstock</title><meta http-equiv="refresh" content="0; url={}/">\n'


def folder_of(version: str) -> str:
    """Return the folder of a version: 0.2 for 0.2.0 and its fixes 0.2.1 and so on, dev for what is between tags."""
    return DEV if "dev" in version or "+" in version else ".".join(version.split(".")[:2])


def add_version(sites: Path, html: Path, version: str) -> None:
    """Put the site of a version among the others, in place of an older one of the same folder."""
    name = folder_of(version)
    shutil.rmtree(sites / name, ignore_errors=True)
    shutil.copytree(html, sites / name)
    found = sorted((path.name for path in sites.iterdir() if _is_version(path)), key=_order, reverse=True)
    newest = found[0]
    latest = sites / LATEST
    latest.unlink(missing_ok=True)
    latest.symlink_to(newest)
    (sites / "versions.json").write_text(json.dumps([_entry(each, newest) for each in found], indent=2) + "\n")
    (sites / "index.html").write_text(_REDIRECT.format(LATEST))


def _entry(name: str, newest: str) -> dict[str, Any]:
    return {"version": name, "title": name, "aliases": [LATEST] if name == newest else []}


def _is_version(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and (path.name == DEV or path.name.replace(".", "").isdigit())


def _order(name: str) -> tuple[int, ...]:
    return () if name == DEV else tuple(map(int, name.split(".")))  # dev is behind all releases
