"""The table of a run as a chart (SVG): a pair of bars for each scenario, with the range over the rounds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from html import escape
from pathlib import Path

from benchmarks.report import Results

WIDTH, LEFT, RIGHT = 760, 240, 150
BAR, GAP, HEAD, FOOT = 18, 22, 34, 54
#: Dark text on light pages, light text on dark ones; the bars differ in lightness too.
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #1f2328 }
  .small { font-size: 11px; fill: #59636e }
  .ratio { font-weight: 600 }
  .bar0 { fill: #8c959f } .bar1 { fill: #0969da }
  .range { stroke: #1f2328; stroke-width: 1.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .range { stroke: #e6edf3 }
    .bar0 { fill: #6e7681 } .bar1 { fill: #4493f8 }
  }
"""


def write_plot(results: Results, environment: str, file: Path) -> None:
    """Write the throughput of each scenario and system, in k records/s, with the environment below."""
    systems = list(dict.fromkeys(system for by_system in results.values() for system in by_system))
    highest = max(run.rate for by_system in results.values() for runs in by_system.values() for run in runs)
    rows = sum(len(by_system) * BAR + GAP for by_system in results.values())
    height = HEAD + rows + FOOT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(' and '.join(systems))}: thousand records per second</title>",
        f"<style>{STYLE}</style>",
        *_legend(systems),
        *_rows(results, systems, highest),
        *_footer(environment, HEAD + rows + 16),
        "</svg>",
    ]
    file.write_text("\n".join(lines) + "\n", "utf-8")


def _legend(systems: list[str]) -> Iterator[str]:
    for number, system in enumerate(systems):
        x = LEFT + number * 140
        yield f'<rect class="bar{number}" x="{x}" y="8" width="12" height="12"/>'
        yield f'<text x="{x + 18}" y="19">{escape(system)}</text>'
    yield f'<text class="small" x="{WIDTH - 8}" y="19" text-anchor="end">thousand records/s</text>'


def _rows(results: Results, systems: list[str], highest: float) -> Iterator[str]:
    y = HEAD
    scale = (WIDTH - LEFT - RIGHT) / highest
    for scenario, by_system in results.items():
        middle = y + len(by_system) * BAR / 2 + 4
        yield f'<text x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(scenario.title)}</text>'
        medians = {system: statistics.median(run.rate for run in runs) for system, runs in by_system.items()}
        for system, median in medians.items():
            rates, number = [run.rate for run in by_system[system]], systems.index(system)
            end, low, high = (LEFT + rate * scale for rate in (median, min(rates), max(rates)))
            yield f'<rect class="bar{number}" x="{LEFT}" y="{y}" width="{end - LEFT:.1f}" height="{BAR - 3}"/>'
            yield f'<path class="range" d="M{low:.1f} {y + BAR / 2 - 1.5}H{high:.1f}"/>'
            yield f'<text x="{max(end, high) + 6:.1f}" y="{y + 12}">{median / 1000:,.0f}</text>'
            y += BAR
        if len(medians) == 2:
            theirs, ours = medians.values()
            ratio = f"{ours / theirs:.2f} times"
            yield f'<text class="ratio" x="{WIDTH - 8}" y="{middle}" text-anchor="end">{ratio}</text>'
        y += GAP


def _footer(environment: str, y: int) -> Iterator[str]:
    """Split the line about the environment at a semicolon, in two."""
    parts = environment.split("; ")
    for number, line in enumerate(("; ".join(parts[:2]), "; ".join(parts[2:]))):
        yield f'<text class="small" x="8" y="{y + number * 16}">{escape(line)}</text>'
