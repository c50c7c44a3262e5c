"""Drawings of topologies: Mermaid's text, and a page."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from click.testing import CliRunner

from penstock import Serdes, StreamsBuilder, Topology
from penstock.cli import cli
from penstock.topology.graph.topology_graph import STORE, graphs, html, mermaid


def topology() -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream("in", key_serde=Serdes.string(), value_serde=Serdes.string())
    stream.group_by(lambda key, value: value, name="k").count(store="counts").to_stream().to("out")
    return builder.build()


def test_mermaid_has_every_link_of_the_description() -> None:
    text = mermaid(topology().describe())
    assert text.startswith("flowchart TD\n")
    for graph in graphs(topology().describe()):
        assert f'["{graph.title}"]' in text
        assert all(f"{vertex.label}" in text for vertex in graph.vertices)
    assert text.count('k-repartition"]') == 1  # between two sub-topologies, and once
    assert text.count("-->") == sum(end.kind != STORE for g in graphs(topology().describe()) for _, end in g.links)
    assert text.count("-.-") == 1


def test_a_vertex_is_below_all_its_predecessors() -> None:
    for graph in graphs(topology().describe()):
        level = {vertex: number for number, layer in enumerate(graph.layers()) for vertex in layer}
        assert level.keys() == graph.vertices.keys()
        assert all(level[start] < level[end] for start, end in graph.links)


def test_quotes_and_markup_in_names_are_escaped() -> None:
    builder = StreamsBuilder()
    builder.stream("in").filter(lambda key, value: True, name="a-b").to("out")
    description = builder.build().describe()
    (subtopology,) = description.subtopologies
    nodes = tuple(replace(node, name='<"#1">') if node.name == "a-b" else node for node in subtopology.nodes)
    description = replace(description, subtopologies=(replace(subtopology, nodes=nodes),))
    assert '["<#quot;#35;1#quot;>"]' in mermaid(description)
    assert "&lt;&quot;#1&quot;&gt;" in html(description, "")


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    page = html(topology().describe(), "my_app:<topology>")
    assert "my_app:&lt;topology&gt;" in page
    assert "http" not in page
    for figure in page.split("<figure")[1:]:
        svg = figure[figure.index("<svg") : figure.index("</svg>") + len("</svg>")]
        drawn = ElementTree.fromstring(svg)
        assert len(drawn.findall("g")) > 2


def test_the_command_prints_both_formats() -> None:
    def printed(*options: str) -> str:
        result = CliRunner().invoke(cli, ["describe", "examples.flights.topology:build", *options])
        assert result.exit_code == 0, result.output
        return result.output

    assert printed("--mermaid").startswith("flowchart TD")
    assert printed("--html").startswith("<!DOCTYPE html>")
