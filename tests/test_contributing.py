"""CONTRIBUTING.md names files that exist, and commits run the same checks as everything else."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TOP = "|".join(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith("."))


def test_the_files_named_for_contributors_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(rf"(?<![\w./])(?:{TOP})/[\w./-]*", text))
    assert len(named) > 30
    missing = [name for name in sorted(named) if not (ROOT / name.rstrip(".")).exists()]
    assert not missing


def test_commits_run_bin_lint() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    (repo,) = config["repos"]
    (hook,) = repo["hooks"]
    assert repo["repo"] == "local"
    assert (hook["entry"], hook["language"], hook["pass_filenames"]) == ("bin/lint", "system", False)
    assert os.access(ROOT / "bin" / "lint", os.X_OK)
