"""penstock completion and bench: what needs no broker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.cli import bench as bench_command
from penstock.cli import cli

pytestmark = pytest.mark.medium

ROOT = Path(__file__).resolve().parent.parent


def ask(words: str, number: int) -> set[str]:
    """Call completion as bash's function does; return its suggestions."""
    variables = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    command = [sys.executable, "-c", "from penstock.cli import main; main()"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=True)
    return {line.partition(",")[2] for line in done.stdout.splitlines()}


def test_commands_and_options_are_completed() -> None:
    assert ask("penstock sta", 1) == {"state", "status"}
    assert ask("penstock threads re", 2) == {"remove", "restart"}
    assert ask("penstock reset --to-", 2) == {"--to-earliest", "--to-latest", "--to-datetime"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_accepts_the_script(shell: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["completion", shell], prog_name="penstock")
    assert result.exit_code == 0
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in result.output
    if shutil.which(shell):
        script = tmp_path / "script"
        script.write_text(result.output)
        subprocess.run([shell, "-n", str(script)], check=True)


def test_bench_runs_the_benchmarks_own_command(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(cli, ["bench", "--help"])
    assert result.exit_code == 0
    assert "Measure Penstock against Kafka Streams" in result.output
    assert "--only" in result.output

    monkeypatch.setattr(bench_command, "ROOT", Path("/nowhere"))
    missing = CliRunner().invoke(cli, ["bench", "--quick"])
    assert missing.exit_code == 1
    assert "not part of the installed package" in missing.output


def test_listing_the_commands_imports_none_of_them() -> None:
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from penstock.cli import cli\n"
        "assert CliRunner().invoke(cli, ['--help']).exit_code == 0\n"
        "heavy = {name for name in sys.modules if name.endswith('_command')}\n"
        "heavy |= {'confluent_kafka', 'rocksdict'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
