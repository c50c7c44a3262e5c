"""The small programs of ../shared/cases/state, each of which once showed a fault, print what they should."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parents[3] / "shared" / "cases" / "state"

_ROWS = "[{'i': 0}, {'i': 1}, {'i': 2}] {'last': {'n': 1}}"
_TIMESTAMP = "-> StreamsError .* source KSTREAM-SOURCE-0000000000 for the record of in-0 at offset 0: .*"
#: What each prints at its end: regular expressions, one for each line.
PRINTED = {
    "cache_alias": [
        re.escape(f"""10485760 {_ROWS} ['[{{"i":0}},{{"i":1}},{{"i":2}}]']"""),
        rf"""0 {re.escape(_ROWS)} .*'\[{{"i":0}},{{"i":1}},{{"i":2}}\]'\]""",
    ],
    "cache_poison": [re.escape(f"{cache} [('a', 1), ('a', 2)]") for cache in (10_485_760, 0)],
    "cache_types": [f"{cache} record 10 FailedProcessingError .*'tuple' and 'list'" for cache in (10_485_760, 0, 400)],
    "dlq_suppress": [r"b'k' b'0' \[\('__streams.errors.topic', b'in'\), \('__streams.errors.offset', b'0'\)\]"],
    "dlq_twice": [r"letters \[\(b'k', b'0'\)\] dropped .*: 1\}"],
    "lru_changelog": [
        re.escape("changelog [('a', '1'), ('b', '1'), ('c', '1'), ('b', None), ('d', '1')]"),
        re.escape("store ['a', 'c', 'd']"),
        re.escape("restored ['a', 'c', 'd']"),
    ],
    "pair_string": [r".*KTABLE-SELECT-0000000003 must return a pair \(key, value\), not a str of length 2"],
    "ttd_pattern": [re.escape("[('k', 1)]")],
    "json_lossy": [r".*SerializationError: JSON has no nan\. .*"],
    "doc_serde_name": ["ok"],
    "extractor": [
        f"tuple {_TIMESTAMP} not \\(1, 7\\) \\(tuple\\)",
        f"none {_TIMESTAMP} not None \\(NoneType\\)",
        f"float {_TIMESTAMP} not 12.7 \\(float\\)",
        f"str {_TIMESTAMP} not '12' \\(str\\)",
        f"raise {_TIMESTAMP} boom",
        f"wrong arity {_TIMESTAMP}",
        f"datetime {_TIMESTAMP}",
        r"neg \[\]",
        f"bool {_TIMESTAMP} not True \\(bool\\)",
        f"huge {_TIMESTAMP} 64 bits.*",
        r"np \[\('k', 5\)\]",
    ],
}


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared is not here")
def test_each_program_is_known() -> None:
    assert {path.stem for path in CASES.glob("*.py")} == set(PRINTED)


@pytest.mark.skipif(not CASES.is_dir(), reason="../shared is not here")
@pytest.mark.parametrize("name", PRINTED)
def test_a_program_prints_what_it_should(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, CASES / f"{name}.py"], capture_output=True, text=True, timeout=60, check=False
    )
    expected = PRINTED[name]
    lines = (ran.stdout + ran.stderr).splitlines()[-len(expected) :]
    assert len(lines) == len(expected), ran.stdout + ran.stderr
    for line, pattern in zip(lines, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)
    if name == "json_lossy":
        assert '{"wei":123456789012345678901234567890}' in ran.stdout
