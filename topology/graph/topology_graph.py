"""A topology's description as a diagram: Mermaid text, or a self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape

from .description import GlobalStore, OutsideSink, Processor, Sink, Source, Subtopology, TopologyDescription

TOPIC, NODE, STORE = "topic", "node", "store"

#: In Mermaid, topics are rounded, stores are drawn as drums.
_SHAPES = {TOPIC: ('(["', '"])'), NODE: ('["', '"]'), STORE: ('[("', '")]')}

#: Sizes in pixels.
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 290, 30, 24, 40, 8

_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --line: #8a94a0; --node: #eef1f4; --topic: #dcebfa; --store: #e5f3e1; }}
@media (prefers-color-scheme: dark) {{ :root {{ --node: #2a3037; --topic: #1d3a57; --store: #24402a; }} }}
body {{ font: 14px system-ui, sans-serif; margin: 1.5rem; }}
figure {{ margin: 0 0 2rem; overflow-x: auto; }}
figcaption {{ font-weight: 600; margin-bottom: .5rem; }}
rect {{ stroke: var(--line); }} text {{ fill: currentColor; font-size: 12px; text-anchor: middle; }}
path {{ fill: none; stroke: var(--line); }} path.keeps {{ stroke-dasharray: 4 3; }}
.node rect {{ fill: var(--node); }} .topic rect {{ fill: var(--topic); }} .store rect {{ fill: var(--store); }}
</style>
<h1>{title}</h1>
{figures}
</html>
"""


@dataclass(frozen=True, slots=True)
class Vertex:
    """A topic, a processor node or a store."""

    kind: str
    label: str


@dataclass(slots=True)
class Graph:
    """The diagram of one sub-topology. links: (from, to); a link to a store is from a processor that uses it."""

    title: str
    vertices: dict[Vertex, None] = field(default_factory=dict)
    links: list[tuple[Vertex, Vertex]] = field(default_factory=list)

    def link(self, start: Vertex, end: Vertex) -> None:
        """Add a link, and its ends if they are new."""
        self.vertices.update(dict.fromkeys((start, end)))
        self.links.append((start, end))

    def layers(self) -> list[list[Vertex]]:
        """Return the vertices from top to bottom, each below all that lead to it."""
        depth = dict.fromkeys(self.vertices, 0)
        moved = True
        while moved:
            moved = False
            for start, end in self.links:
                if depth[end] <= depth[start]:
                    depth[end] = depth[start] + 1
                    moved = True
        return [[v for v in self.vertices if depth[v] == level] for level in range(max(depth.values(), default=-1) + 1)]


def graphs(description: TopologyDescription) -> list[Graph]:
    """Return one graph for each sub-topology and each global store."""
    parts: list[Subtopology | GlobalStore] = [*description.subtopologies, *description.global_stores]
    return [_graph(part) for part in sorted(parts, key=lambda part: part.id)]


def _graph(part: Subtopology | GlobalStore) -> Graph:
    graph = Graph(f"{'Global store' if isinstance(part, GlobalStore) else 'Sub-topology'} {part.id}")
    for node in (part.source, part.processor) if isinstance(part, GlobalStore) else part.nodes:
        vertex = Vertex(NODE, node.name)
        graph.vertices[vertex] = None
        for topic in _topics(node):
            graph.link(*((topic, vertex) if isinstance(node, Source) else (vertex, topic)))
        for successor in () if isinstance(node, Sink | OutsideSink) else node.successors:
            graph.link(vertex, Vertex(NODE, successor))
        for store in node.stores if isinstance(node, Processor) else ():
            graph.link(vertex, Vertex(STORE, store))
    return graph


def _topics(node: Source | Processor | Sink | OutsideSink) -> Iterator[Vertex]:
    if isinstance(node, Source):
        names: Iterable[str] = node.topics if node.topic_pattern is None else (node.topic_pattern.pattern,)
    elif isinstance(node, Sink):
        names = (node.topic or "chosen by a function",)
    elif isinstance(node, OutsideSink):
        names = (node.sink,)
    else:
        names = ()
    return (Vertex(TOPIC, name) for name in names)


def mermaid(description: TopologyDescription) -> str:
    """Return a flowchart in Mermaid's language. A topic between two sub-topologies occurs once, outside of both."""
    drawn = graphs(description)
    names = {v: f"{v.kind[0]}{i}" for i, v in enumerate(dict.fromkeys(v for graph in drawn for v in graph.vertices))}
    lines = ["flowchart TD"]
    lines += [f"    {_mermaid(vertex, name)}" for vertex, name in names.items() if vertex.kind == TOPIC]
    for number, graph in enumerate(drawn):
        lines.append(f'    subgraph g{number}["{graph.title}"]')
        lines += [f"        {_mermaid(vertex, names[vertex])}" for vertex in graph.vertices if vertex.kind != TOPIC]
        lines.append("    end")
        lines += [f"    {names[a]} {'-.-' if b.kind == STORE else '-->'} {names[b]}" for a, b in graph.links]
    return "\n".join(lines)


def _mermaid(vertex: Vertex, name: str) -> str:
    opening, closing = _SHAPES[vertex.kind]
    label = vertex.label.replace("#", "#35;").replace('"', "#quot;")
    return f"{name}{opening}{label}{closing}"


def html(description: TopologyDescription, title: str) -> str:
    """Return a page with a drawing of each sub-topology. title: e.g. the name of the application."""
    return _PAGE.format(title=escape(title), figures="\n".join(_figure(graph) for graph in graphs(description)))


def _figure(graph: Graph) -> str:
    layers = graph.layers()
    width = max(map(len, layers)) * (WIDTH + GAP_X) + GAP_X
    height = len(layers) * (HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    at = _places(graph, layers, width)
    shapes = [_path(at[start], at[end], end.kind == STORE) for start, end in graph.links]
    shapes += [_box(vertex, *at[vertex]) for vertex in graph.vertices]
    return (
        f'<figure tabindex="0"><figcaption>{graph.title}</figcaption>'
        f'<svg width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img">'
        f"<title>{graph.title}</title>{''.join(shapes)}</svg></figure>"
    )


def _places(graph: Graph, layers: list[list[Vertex]], width: int) -> Mapping[Vertex, tuple[float, float]]:
    """Return the center of each box, below its parents if possible, so that fewer lines cross."""
    at: dict[Vertex, tuple[float, float]] = {}
    for level, layer in enumerate(layers):
        above = {v: [at[start][0] for start, end in graph.links if end == v and start in at] for v in layer}
        ordered = sorted(layer, key=lambda v: sum(above[v]) / len(above[v]) if above[v] else 0.0)
        for index, vertex in enumerate(ordered):
            x = width / 2 + (index - (len(layer) - 1) / 2) * (WIDTH + GAP_X)
            at[vertex] = (x, MARGIN + HEIGHT / 2 + level * (HEIGHT + GAP_Y))
    return at


def _path(start: tuple[float, float], end: tuple[float, float], keeps: bool) -> str:
    top, bottom = start[1] + HEIGHT / 2, end[1] - HEIGHT / 2
    bend = (top + bottom) / 2
    line = f"M{start[0]} {top} C{start[0]} {bend} {end[0]} {bend} {end[0]} {bottom}"
    head = f"M{end[0] - 4} {bottom - 7} L{end[0]} {bottom} L{end[0] + 4} {bottom - 7}"
    return f'<path class="{"keeps" if keeps else "leads"}" d="{line}"/><path d="{head}"/>'


def _box(vertex: Vertex, x: float, y: float) -> str:
    label = vertex.label if len(vertex.label) <= 40 else f"{vertex.label[:19]}…{vertex.label[-20:]}"
    radius = HEIGHT / 2 if vertex.kind == TOPIC else 4
    return (
        f'<g class="{vertex.kind}"><title>{vertex.kind} {escape(vertex.label)}</title>'
        f'<rect x="{x - WIDTH / 2}" y="{y - HEIGHT / 2}" width="{WIDTH}" height="{HEIGHT}" rx="{radius}"/>'
        f'<text x="{x}" y="{y + 4}">{escape(label)}</text></g>'
    )
