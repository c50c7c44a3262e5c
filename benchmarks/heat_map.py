"""The matrix as a chart (SVG): operators by serdes; a cell's color is its cost relative to
text and int64 in its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from benchmarks.plot import STYLE

LEFT, CELL_WIDTH, CELL_HEIGHT, GAP = 150, 46, 26, 14
HEAD, FOOT = 78, 54
#: A cell has the color of the first limit that its multiple does not exceed. Text on all of them is dark.
LIMITS = ((0.9, "#9be9a8"), (1.1, "#eaf5ea"), (4 / 3, "#fff3bf"), (2.0, "#ffc078"), (float("inf"), "#ff8787"))
CELL_STYLE = ".cell { font-size: 12px; fill: #1f2328 } .slower { font-weight: 600 }"

#: A cell: microseconds, and its multiple of the first cell of its row; None is not measured.
Cell = tuple[float, float] | None


def heat_map(rows: Sequence[tuple[str, Sequence[Sequence[Cell]]]], columns: Sequence[Sequence[str]], note: str) -> str:
    """Return the SVG. rows: name and groups of cells; columns: the names of each group's; note: the line below."""
    right = LEFT + sum(map(len, columns)) * CELL_WIDTH + (len(columns) - 1) * GAP
    bottom = HEAD + len(rows) * CELL_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 8} {bottom + FOOT}" role="img">',
        "<title>Microseconds of CPU time of a record, by operator and serde</title>",
        f"<style>{STYLE}{CELL_STYLE}</style>",
        *_heads(columns),
        *(line for place, row in enumerate(rows) for line in _row(HEAD + place * CELL_HEIGHT, *row)),
        *_legend(bottom + 22),
        f'<text class="small" x="8" y="{bottom + 46}">{escape(note)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _places(sizes: Sequence[int]) -> Iterator[list[int]]:
    x = LEFT
    for size in sizes:
        yield [x + number * CELL_WIDTH for number in range(size)]
        x += size * CELL_WIDTH + GAP


def _heads(columns: Sequence[Sequence[str]]) -> Iterator[str]:
    for title, names, places in zip(("keys", "values"), columns, _places(list(map(len, columns))), strict=True):
        yield f'<text class="ratio" x="{places[0]}" y="16">{title}</text>'
        for name, x in zip(names, places, strict=True):
            middle, y = x + CELL_WIDTH // 2 - 8, HEAD - 6
            turned = f'transform="rotate(-40 {middle} {y})"'
            yield f'<text class="small" x="{middle}" y="{y}" {turned}>{escape(name)}</text>'


def _row(y: int, name: str, groups: Sequence[Sequence[Cell]]) -> Iterator[str]:
    yield f'<text x="{LEFT - 8}" y="{y + 18}" text-anchor="end">{escape(name)}</text>'
    for cells, places in zip(groups, _places(list(map(len, groups))), strict=True):
        for cell, x in zip(cells, places, strict=True):
            if cell is not None:
                cost, multiple = cell
                color = next(color for limit, color in LIMITS if multiple <= limit)
                css = "cell slower" if multiple > LIMITS[2][0] else "cell"
                size = f'width="{CELL_WIDTH - 2}" height="{CELL_HEIGHT - 2}"'
                yield f'<rect x="{x}" y="{y}" {size} fill="{color}"/>'
                yield f'<text class="{css}" x="{x + 22}" y="{y + 17}" text-anchor="middle">{cost:.1f}</text>'


def _legend(y: int) -> Iterator[str]:
    yield f'<text class="small" x="8" y="{y}">µs; beside text and int64:</text>'
    for number, (limit, color) in enumerate(LIMITS):
        x = LEFT + 20 + number * 110
        below = f"above {LIMITS[number - 1][0]:.2g}" if limit == float("inf") else f"up to {limit:.2g}"
        yield f'<rect x="{x}" y="{y - 11}" width="14" height="14" fill="{color}"/>'
        yield f'<text class="small" x="{x + 20}" y="{y}">{below} times</text>'
