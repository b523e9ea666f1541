"""A plan on the topology, as text and as SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from gangline.aggregator.commands.plan_picture import (
    LINE_CHARACTERS,
    TIERS_SHOWN,
    PlanPicture,
    picture_lines,
    picture_svg,
    plan_picture,
)
from gangline.contract.wire import placement_pb2 as wire


def drawn(nodes: int = 9, rack: int = 2, leaf: int = 4) -> PlanPicture:
    """Return a plan of nodes 0, 1, 4, 5 in segments of two; 2 is a spare, 3 is out, 6 in use; the
    last is in no domain.
    """
    option = wire.PlacementOption(node_index=[0, 1, 4, 5], spare_node_index=[2])
    domains = {}
    for tier, size in zip(TIERS_SHOWN, (nodes, leaf, rack), strict=True):
        reply = wire.ListTopologyDomainsResponse(
            free_bitmap=(2**nodes - 1 - (1 << 6)).to_bytes(-(-nodes // 8), "little"),
            excluded_bitmap=bytes([1 << 3]),
        )
        for first in range(0, nodes - 1, size):
            members = range(first, min(first + size, nodes - 1))
            reply.domains.add(name=f"<{size}>-{first:04d}", node_index=members)
        domains[int(tier)] = reply
    return plan_picture(option, domains, nodes, 2)


def test_who_is_where_is_seen_in_a_terminal() -> None:
    assert picture_lines(drawn())[1:] == [
        "<9>-0000 / <4>-0000 ## sx",
        "<9>-0000 / <4>-0004 ## -.",
        "leaf not known      .",
    ]


def test_no_line_is_longer_than_a_terminal() -> None:
    """Leaves of hundreds of nodes go on in the next line, and no node is left out."""
    lines = picture_lines(drawn(nodes=1000, rack=300, leaf=999))
    assert max(map(len, lines)) <= LINE_CHARACTERS
    signs = "".join(line[24:] for line in lines[1:]).replace(" ", "")
    assert len(signs) == 1000 and signs.count("#") == 4 and signs.count("x") == 1


def test_a_picture_is_xml_with_every_node() -> None:
    """Names come from labels that anyone may set: the SVG must be valid XML with any name."""
    for nodes in (9, 2000):
        root = ElementTree.fromstring(picture_svg(drawn(nodes), "4 nodes & <more>", ["a < b"]))
        cells = [element for element in root.iter() if element.tag.endswith("rect")]
        assert len(cells) == nodes + 1 + 5  # the paper and the legend
        colors = {cell.get("fill") for cell in cells[6:]}
        assert len(colors) == 6  # two of segments, spare, in use, out; None: free
        width = int(root.attrib["width"])
        assert all(float(cell.attrib["x"]) < width for cell in cells[1:])
