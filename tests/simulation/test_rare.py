"""The table of rare branches: found in the source, counted while schedules run, and reported as gaps."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from penstock.workers.tasks.task_manager import TaskManager
from tests.simulation.command import main, run_part, run_seed, scratch
from tests.simulation.gaps import GAPS
from tests.simulation.rare import Branch, Marking, RareBranches
from tests.simulation.table import EVENTS, HITS, Rare, gaps, lines

pytestmark = pytest.mark.medium

SOURCE = '''
def work(what, log):
    """Docstring."""
    try:
        if what == "raise":
            raise ValueError("no")
        elif what == "warn":
            log.warning("Careful with %s", what)
        else:
            log.info("fine")
    except (KeyError, ValueError):
        raise
    except TypeError:
        log.error("bad")
        log.error("bad")
    finally:
        for _ in range(2):
            if what == "end":
                raise RuntimeError
'''


class Log:
    def __getattr__(self, name: str) -> object:
        return lambda *_: None


def marked() -> tuple[list[Branch], Counter[str], dict[str, object]]:
    marking = Marking("m")
    tree = marking.visit(ast.parse(SOURCE))
    reached: Counter[str] = Counter()
    names: dict[str, object] = {"__reached__": lambda branch: reached.update((branch,))}
    exec(compile(tree, "m.py", "exec"), names)
    return marking.branches, reached, names


def test_rare_branches_are_found_in_the_source() -> None:
    branches, _, names = marked()
    assert sorted(branch.what for branch in branches) == [
        "error 'bad'",
        "except (KeyError, ValueError)",
        "except TypeError",
        "raise RuntimeError",
        "raise ValueError",
        "warning 'Careful with %s'",
    ]
    assert {branch.function for branch in branches} == {"work"}
    assert names["work"].__doc__ == "Docstring."


@pytest.mark.parametrize(
    ("what", "error", "reached"),
    [
        ("nothing", None, []),
        ("warn", None, ["warning 'Careful with %s'"]),
        ("raise", ValueError, ["raise ValueError", "except (KeyError, ValueError)"]),
        ("end", RuntimeError, ["raise RuntimeError"]),
    ],
)
def test_reached_branches_are_counted(what: str, error: type[Exception] | None, reached: list[str]) -> None:
    _, counter, names = marked()
    work = names["work"]
    assert callable(work)
    if error is None:
        work(what, Log())
    else:
        with pytest.raises(error):
            work(what, Log())
    assert dict(counter) == {f"m.work: {name}": 1 for name in reached}


def test_the_code_is_restored_afterwards() -> None:
    codes = {name: member.__code__ for name, member in vars(TaskManager).items() if hasattr(member, "__code__")}
    with RareBranches(["tasks.task_manager"]).counting():
        assert any(vars(TaskManager)[name].__code__ is not code for name, code in codes.items())
    assert {name: vars(TaskManager)[name].__code__ for name in codes} == codes


def test_counting_changes_no_schedule(tmp_path: Path) -> None:
    with scratch() as directory:
        plain = run_seed(17, directory)
        with RareBranches().counting() as reached:
            assert run_seed(17, directory).trace == plain.trace
    assert reached


def test_schedules_reach_most_branches_and_the_table_lists_the_others() -> None:
    branches = RareBranches().branches
    part = run_part(range(25))
    table = list(lines(part.rare, branches))
    assert table[0] == "reached in how many of 25 schedules, and how often in all"
    assert any("task_manager.py" in line for line in table)
    missing = gaps(part.rare, branches)
    assert 0 < len(missing) < len(HITS) + len(EVENTS) + len(branches)
    assert sum("GAP" in line for line in table) == len(missing)


def test_an_unreached_branch_is_a_gap_unless_there_is_a_reason() -> None:
    branches = RareBranches().branches
    every = {*HITS, *EVENTS, *map(str, branches)}
    named = {name for names in GAPS.values() for name in names}
    assert set(gaps(Rare(), branches)) == {what for what in every if not any(what.startswith(name) for name in named)}
    full = Rare(1, Counter(every), Counter(every))
    assert gaps(full, branches) == []
    full.times[HITS[0]] = 0
    assert gaps(full, branches) == [HITS[0]]


def test_reasons_are_for_existing_branches() -> None:
    """Check the reason again if a branch has changed its message or its place."""
    every = {*HITS, *EVENTS, *map(str, RareBranches().branches)}
    for names in GAPS.values():
        for name in names:
            assert any(what.startswith(name) for what in every), name


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--jobs", "1"]) == 0
    assert "processes are hit:" in capsys.readouterr().out
    assert main(["--seeds", "2", "--jobs", "1", "--no-table"]) == 0
    assert "processes are hit:" not in capsys.readouterr().out
