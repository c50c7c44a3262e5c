"""What a release is made of: ``python -m publish.release``, which ``bin/release`` runs with the tools that it needs.

Everything but the upload, which a workflow does with a token that only the package index gives it
(.github/workflows/release.yml). The wheel is built twice, in two folders, and has to have the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from penstock_distribution import NAME

ROOT = Path(__file__).resolve().parent.parent


class ReleaseError(Exception):
    """The repository is not what a release of this version can be made of."""


def check_changes(version: str, root: Path = ROOT) -> None:
    """Raise ReleaseError unless CHANGELOG.md has a version's section, and changes/ nothing that is missing in it."""
    wrong = [f"{path.relative_to(root)} is not in it" for path in sorted((root / "changes").glob("*.*.md"))]
    if not notes(version, root):
        wrong.insert(0, f"there is no section [{version}]")
    if wrong:
        raise ReleaseError(f"CHANGELOG.md: {'; '.join(wrong)}: towncrier build --version {version}")


def notes(version: str, root: Path = ROOT) -> str:
    """Return what CHANGELOG.md says about a version, without its heading; empty if it says nothing."""
    text = (root / "CHANGELOG.md").read_text()
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## \[|\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1].strip() if found else ""


def commit_seconds() -> str:
    """Return when the commit was made, in seconds since 1970: the time of all files in the archives."""
    return _run("git", "log", "-1", "--format=%ct", cwd=ROOT).strip()


def build(folder: Path) -> list[Path]:
    """Build the sdist, and the wheel from it, into a folder. Returns both, the sdist first."""
    environment = {
        "SOURCE_DATE_EPOCH": commit_seconds(),
        # Debug information has the folder in it that the compiler ran in.
        "CFLAGS": f"{os.environ.get('CFLAGS', '')} -g0".strip(),
        "PIP_CONSTRAINT": str(ROOT / "constraints.txt"),
    }
    _run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder, environment=environment)
    return sorted(folder.iterdir(), key=lambda path: path.suffix)


def version_of(sdist: Path) -> str:
    """Return the version that git's tag gave to an sdist."""
    return sdist.name.removesuffix(".tar.gz").rpartition("-")[2]


def digests(files: list[Path]) -> dict[str, str]:
    """Return the SHA-256 of files by name. Of an sdist it is that of the unpacked content: gzip's header has a time."""
    return {path.name: hashlib.sha256(_content(path)).hexdigest() for path in files}


def _content(path: Path) -> bytes:
    if not path.name.endswith(".tar.gz"):
        return path.read_bytes()
    with tarfile.open(path) as archive:
        return b"".join(_member(archive, each) for each in sorted(archive.getmembers(), key=lambda each: each.name))


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None
    return member.name.encode() + (file.read() if file else b"")


def _differences(one: dict[str, str], other: dict[str, str]) -> Iterator[str]:
    yield from (name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name))


def _run(*command: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Check, build twice and compare; the files stay in dist/. The only argument is the tag, or --dry-run."""
    tag = None if arguments == ["--dry-run"] else arguments[0] if len(arguments) == 1 else ""
    if tag == "":
        print("usage: bin/release --dry-run | vVERSION", file=sys.stderr)
        return 2
    try:
        if tag is not None:
            check_changes(tag.removeprefix("v"))
        dist = ROOT / "dist"
        dist.mkdir(exist_ok=True)
        for old in dist.iterdir():
            old.unlink()
        first = build(dist)
        version = version_of(first[0])
        if tag not in (None, f"v{version}"):
            raise ReleaseError(
                f"the tag is {tag}, the version {version}: is the tag on this commit, and nothing changed?"
            )
        with tempfile.TemporaryDirectory() as other:
            different = list(_differences(digests(first), digests(build(Path(other)))))
        if different:
            raise ReleaseError(f"built twice, they differ: {', '.join(different)}")
    except ReleaseError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    for name, digest in digests(first).items():
        print(f"{digest}  {name}")
    print(f"{NAME} {version} is built, the same bytes twice; nothing was uploaded.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
