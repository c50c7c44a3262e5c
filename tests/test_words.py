"""Prose avoids words that read as translated. The lists have only words without a good use in these pages.

Quotations in code blocks may have them: an example of a log shows the program's words.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.markdown import prose
from tests.test_structure import ROOMS, linked

ROOT = Path(__file__).resolve().parent.parent
#: Replacements, by regular expressions of the words.
INSTEAD = {
    r"for ever": "forever, indefinitely",
    r"in good order": "cleanly, gracefully",
    r"whoever": "you, the caller, clients",
    r"nobody|somebody": "no process, another client",
    r"anew": "again; recreated, restarted",
    r"mend(s|ed|ing)?": "fix",
    r"as long as (he|she|it) likes": "indefinitely",
    r"(takes?|took|taken) (the|its|their) place( of)?": "replace",
    r"(stands?|stood|standing) still": "is stuck, stalls, is idle",
    r"of (its|their) own(?! \w)": "its own, their own (before the noun)",
    r"of (ours|yours|theirs)": "our, your, their",
    r"\w*behaviour|colours?|optimisation|centre|licence|misspelt|spoilt": "American spelling",
    r"told from": "distinguished, within noise",
    r"that is because": "because",
}
#: The same for prose outside of tests. Code may use such names.
INSTEAD_IN_PROSE = {
    r"tells?|told": "reports, warns, logs, raises, distinguishes",
    r"each (\d+|ten|few) (milliseconds|ms|seconds|minutes)|each second": "every",
    r"(stands?|stood)(?! for)": "is in; stalls, is stuck",
    r"(gives?|given|gave) up": "releases, closes, drops",
    r"what (was|were|is) (asked|passed on|printed|processed|received|refused|restored|seen|sent|tried|written)": (
        "a noun: processed records, forwarded records"
    ),
    r"how far(?! apart)": "progress, position",
    r"(is|are|was|were) not to": "must not",
    r"(goes|go|went|gone) on": "continues, resumes",
    r"(is|are|was|were) (not )?there(?=[.,;:)]| already| yet| again)": "exists, is missing",
}
#: Texts for people: documentation, and the code with its docstrings, comments, log lines, errors and help texts.
FOLDERS = (*ROOMS, "benchmarks", "bin", "deploy", "docs", "examples", "publish", "tests")
KINDS = {".md", ".py", ".pyi", ".pyx", ".pxd", ".toml", ".cfg", ".yaml", ""}


def found_in(text: str, instead: Mapping[str, str] = INSTEAD) -> list[str]:
    """Return each forbidden word with its replacement."""
    return [
        f"{found[0]!r}: write {suggestion}"
        for words, suggestion in instead.items()
        for found in re.finditer(rf"\b({words})\b", text, re.IGNORECASE)
    ]


def texts(folder: Path, pattern: str) -> Iterator[Path]:
    for path in sorted(folder.glob(pattern)):
        if (
            path.is_file()
            and path.suffix in KINDS
            and path.name not in ("CHANGELOG.md", "test_words.py")
            and not linked(path)
        ):
            yield path


def prose_of(path: Path) -> str:
    """Return a page without its code blocks, the comments and docstrings of a test, or the whole text of any other
    file.
    """
    text = path.read_text()
    if path.suffix == ".md":
        return prose_of_page(text)
    return "\n".join(comments(text)) if path.is_relative_to(ROOT / "tests") and path.suffix == ".py" else text


def prose_of_page(text: str) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^    .*$", "", prose(text), flags=re.MULTILINE)


def explanation_of(path: Path) -> str:
    """Return a page without its code blocks, the comments and docstrings of a module, or nothing for any other file."""
    text = path.read_text()
    if path.suffix == ".md":
        return prose_of_page(text)
    return "\n".join(comments(text)) if path.suffix == ".py" else ""


def comments(source: str) -> Iterator[str]:
    """Yield the comments and the docstrings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_prose_is_plain_english(folder: str) -> None:
    paths = list(texts(ROOT / folder, "*" if folder == "." else "**/*"))
    assert paths
    wrong = {str(path.relative_to(ROOT)): found for path in paths if (found := found_in(prose_of(path)))}
    assert not wrong


@pytest.mark.parametrize("folder", [".", *(folder for folder in FOLDERS if folder != "tests")])
def test_pages_and_docstrings_are_plain_english(folder: str) -> None:
    paths = list(texts(ROOT / folder, "*" if folder == "." else "**/*"))
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in paths
        if (found := found_in(explanation_of(path), INSTEAD_IN_PROSE))
    }
    assert not wrong


def test_forbidden_words_are_detected() -> None:
    assert found_in("It stood still, for ever.") == [
        "'for ever': write forever, indefinitely",
        "'stood still': write is stuck, stalls, is idle",
    ]
    assert not found_in("The forever loop has its own behavior and replaces it, e.g. mendacious.")
    assert found_in("It stands in a file, which tells how far it is.", INSTEAD_IN_PROSE) == [
        "'tells': write reports, warns, logs, raises, distinguishes",
        "'stands': write is in; stalls, is stuck",
        "'how far': write progress, position",
    ]
    assert not found_in(
        "Is there one? It is there that None stands for null, and says how far apart they are.", INSTEAD_IN_PROSE
    )
