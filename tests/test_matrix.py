"""The matrix of operators and serdes: a limit on bytecode instructions for each serde, and its chart."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from functools import cache

import pytest

from benchmarks import matrix
from benchmarks.heat_map import LIMITS
from benchmarks.matrix import INT64, KEY_KINDS, OPERATORS, TEXT, VALUE_KINDS, Kind
from tests.examples import one_of

cost = cache(matrix.instructions)


@pytest.mark.parametrize("operator", one_of(4, OPERATORS))
@pytest.mark.parametrize("keys", KEY_KINDS[1:], ids=lambda kind: kind.name)
def test_no_key_serde_is_more_than_a_third_slower_than_text(operator: str, keys: Kind) -> None:
    assert cost(operator, keys, INT64) / cost(operator, TEXT, INT64) < matrix.SLOWER


@pytest.mark.parametrize("operator", one_of(4, OPERATORS))
@pytest.mark.parametrize("values", VALUE_KINDS[1:], ids=lambda kind: kind.name)
def test_no_value_serde_is_more_than_a_third_slower_than_int64(operator: str, values: Kind) -> None:
    assert cost(operator, TEXT, values) / cost(operator, TEXT, INT64) < matrix.SLOWER


SVG = "{http://www.w3.org/2000/svg}"


def test_the_heat_map_has_each_cell_in_the_color_of_its_multiple() -> None:
    costs = {(name, k.name, v.name): 1.0 for name in ("reduce", "session") for k, v in matrix.KINDS}
    costs["session", TEXT.name, "avro"] = 2.5
    drawn = ET.fromstring(matrix.as_heat_map(costs, ["reduce", "session"], "a machine"))
    shown = {(text.text, text.get("class")) for text in drawn.iter(f"{SVG}text")}
    assert {("session", None), ("windowed", "small"), ("2.5", "cell slower"), ("1.0", "cell")} <= shown
    colors = [cell.get("fill") for cell in drawn.iter(f"{SVG}rect") if cell.get("height") != "14"]  # not the legend
    assert len(colors) == 2 * (len(KEY_KINDS) + len(VALUE_KINDS) - 1)
    assert {color: colors.count(color) for color in colors} == {LIMITS[1][1]: len(colors) - 1, LIMITS[-1][1]: 1}
