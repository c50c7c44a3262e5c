"""Prose keeps clear of words that read as translated; only words without a good use in these pages are listed.

Quotations in code blocks may have them: an example of a log says what the program says.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.markdown import prose

ROOT = Path(__file__).resolve().parent.parent
#: What to write instead, by the words as a regular expression.
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
}
FORBIDDEN = re.compile("|".join(rf"\b(?P<_{n}>{words})\b" for n, words in enumerate(INSTEAD)), re.IGNORECASE)
#: Pages and folders that were not read for this yet; names leave these lists, none comes.
PAGES_NOT_READ = {
    *("async.md", "http.md", "metrics.md", "rebalancing.md"),
    "spark.md",
}
FOLDERS_READ = ("penstock", "supervisor", "pipeline")
TEXTS = [
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in PAGES_NOT_READ),
    *(file for folder in FOLDERS_READ for file in sorted((ROOT / folder).glob("*.py"))),
]


def found_in(text: str) -> list[str]:
    """Return each forbidden word with its replacement."""
    suggestions = list(INSTEAD.values())
    return [f"{found[0]!r}: write {suggestions[int(str(found.lastgroup)[1:])]}" for found in FORBIDDEN.finditer(text)]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_prose_is_plain_english(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".md":
        text = re.sub(r"^    .*$", "", prose(text), flags=re.MULTILINE)
    assert not found_in(text)


def test_the_words_are_found() -> None:
    assert found_in("It stood still, for ever.") == [
        "'stood still': write is stuck, stalls, is idle",
        "'for ever': write forever, indefinitely",
    ]
    assert not found_in("The forever loop has its own behavior and replaces it, e.g. mendacious.")
