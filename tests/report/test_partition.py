"""The table, the figure and the page of a partition, with few clients and with many."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import EllipseCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image
from rich.console import Console

from kedge.data.partitions.partition import PARTITIONS
from kedge.report.numbers import fixed, plural, with_commas
from kedge.report.pages.partition import label_step, page
from kedge.report.partition import PartitionStatistics, document
from kedge.report.partition_rows import MAX_CELLS, MAX_ROWS, heading, shown_rows, subheading
from kedge.report.plots.colors import SCALE, shade
from kedge.report.plots.partition import SMALLEST, partition_figure, scale
from kedge.report.plots.png import png
from kedge.report.tables.partition import amounts, partition_table, verdict

VOID = {"meta"}


def deal(counts: list[list[int]], tests: int = 0, left: int = 0) -> PartitionStatistics:
    return PartitionStatistics(
        "toy", "natural(key=<site>)", 3, np.array(counts), np.full(len(counts), tests), left
    )


def random_deal(clients: int, classes: int, size: int = 20) -> PartitionStatistics:
    rng = np.random.default_rng(0)
    priors = rng.dirichlet([0.3] * classes, clients)
    counts = np.array([rng.multinomial(rng.integers(1, 2 * size), prior) for prior in priors])
    return PartitionStatistics("toy", "dirichlet(alpha=0.3)", 0, counts, np.zeros(clients, dtype=np.int64))


class Elements(HTMLParser):
    """Elements and titles of a page; fails if tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.titles: list[str] = []
        self.captions: set[str] = set()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.captions |= {value for name, value in attrs if name == "title" and value}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)
            self.captions.add(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def shown(one: PartitionStatistics) -> list[list[str]]:
    out = Console(width=160, record=True, file=StringIO())
    out.print(partition_table(one))
    return [re.split(r"  +", line.strip()) for line in out.export_text().splitlines()]


SMALL = deal([[6, 0, 2], [0, 3, 0], [1, 1, 1]], tests=1, left=2)


def test_the_document_has_every_number() -> None:
    found = document(SMALL)
    assert found["samples"] == {"training": 14, "local_test": 3, "to_nobody": 2}
    assert (found["clients"], found["classes"], found["seed"]) == (3, 3, 3)
    assert [row["samples"] for row in found["rows"]] == [8, 3, 3]
    assert [row["classes"] for row in found["rows"]] == [2, 1, 3]
    assert [row["largest_class"] for row in found["rows"]] == [0, 1, 0]
    assert [row["largest_share"] for row in found["rows"]] == [0.75, 1.0, 1 / 3]
    assert found["rows"][0]["counts"] == [6, 0, 2]
    assert found["rows"][1]["distance"] == pytest.approx(10 / 14)
    assert found["summary"]["samples"] == {"min": 3, "25 %": 3, "median": 3, "75 %": 5.5, "max": 8}
    assert found["heterogeneity"]["distance"] == pytest.approx(
        sum(row["distance"] * row["samples"] for row in found["rows"]) / 14
    )


def test_few_clients_have_a_row_each_and_the_quantiles_follow() -> None:
    lines = shown(SMALL)
    assert lines[0] == ["client", "samples", "classes", "largest", "share %", "distance", "local test"]
    assert lines[1] == ["0", "8", "2", "0", "75.0", "0.286", "1"]
    assert lines[2] == ["1", "3", "1", "1", "100.0", "0.714", "1"]
    assert [line[0] for line in lines[5:]] == ["min", "25 %", "median", "75 %", "max"]
    assert lines[8][1] == "5.5"


def test_of_many_clients_the_ends_are_shown_and_no_empty_column() -> None:
    lines = shown(random_deal(41, 3))
    assert "local test" not in lines[0]
    assert [line[0] for line in lines[1:12]] == ["0", "1", "2", "3", "4", "…", "36", "37", "38", "39", "40"]


def test_the_lines_under_the_table() -> None:
    assert amounts(SMALL) == "3 clients · 3 classes · 14 training samples · 3 in local tests · 2 unassigned"
    assert amounts(deal([[1]])) == "1 client · 1 class · 1 training sample"
    value, parts = verdict(deal([[1, 1], [1, 1]]))
    assert value.startswith("heterogeneity -0.500 (0: random partition, 1: one class per client")
    assert parts.endswith("distribution 0.000; random partition 0.167, one class per client 0.500")


def bubbles(figure: Figure) -> EllipseCollection:
    return next(one for one in figure.axes[0].collections if isinstance(one, EllipseCollection))


def texts(figure: Figure) -> set[str]:
    found = [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text)]
    return {
        *found,
        *(axes.get_xlabel() for axes in figure.axes),
        *(axes.get_ylabel() for axes in figure.axes),
    }


def test_few_clients_are_bubbles_whose_area_is_the_number_of_samples() -> None:
    figure = partition_figure(SMALL)
    found = bubbles(figure)
    places = np.asarray(found.get_offsets()).tolist()
    assert places == [[0, 0], [2, 0], [1, 1], [0, 2], [1, 2], [2, 2]]  # class, client
    areas = np.asarray(found.get_widths(), dtype=float) ** 2
    assert areas / areas[-1] == pytest.approx([6, 2, 3, 1, 1, 1])
    assert [to_hex(color) for color in np.asarray(found.get_facecolor())[[0, 5]]] == [
        shade(0.75),
        shade(1 / 3),
    ]
    sizes = [bar.get_width() for bar in figure.axes[2].patches if isinstance(bar, Rectangle)]
    assert sizes == [8, 3, 3]
    totals = [bar.get_height() for bar in figure.axes[1].patches if isinstance(bar, Rectangle)]
    assert totals == [7, 4, 3]
    assert {
        "toy, natural(key=<site>)", "class", "client", "samples", "all", "8",
        "share of a client's samples; area: samples, largest 6", subheading(SMALL),
    } <= texts(figure)  # fmt: skip
    pattern = r"3 clients · heterogeneity 0\.\d\d \(0: random, 1: one class per client\)"
    assert re.fullmatch(pattern, subheading(SMALL))


def test_a_single_sample_among_many_is_seen() -> None:
    one = deal([[100_000, 1]])
    assert np.min(np.asarray(bubbles(partition_figure(one)).get_widths())) >= SMALLEST
    assert min(float(at["r"] or 0) for tag, at in Elements(page(one, [])).tags if tag == "circle") > 1


def test_many_clients_are_a_heat_map_in_the_order_of_their_largest_class() -> None:
    one = random_deal(100, 5)
    rows = shown_rows(one)
    assert sorted(rows.clients.tolist()) == list(range(100))
    largest = one.largest[rows.clients]
    assert (np.diff(largest) >= 0).all()
    purity = one.shares.max(axis=1)[rows.clients]
    assert all((np.diff(purity[largest == label]) <= 0).all() for label in range(5))
    assert rows.sizes.tolist() == sorted(one.sizes.tolist(), reverse=True)
    least = f"100 of 100 clients have at least {plural(int(one.sizes.min()), 'sample')}"
    assert rows.size_caption(99) == least
    (mesh,) = partition_figure(one).axes[0].collections
    drawn: Any = np.ma.asarray(mesh.get_array()).reshape(100, 5)
    assert (np.ma.getmaskarray(drawn) == (rows.counts == 0)).all()
    assert drawn.compressed() == pytest.approx(rows.shares[rows.counts > 0])
    found = Elements(page(one, []))
    assert found.count("circle") == 0
    assert found.count("rect") == int((one.counts > 0).sum())
    assert least in found.captions


@pytest.mark.slow
def test_any_size_fits_on_a_page() -> None:
    for clients, classes, kind in [
        (2, 2, "circle"), (40, 40, "circle"), (41, 2, "rect"), (2, 200, "rect"), (3000, 10, "rect"),
        (10_000, 200, "rect"),
    ]:  # fmt: skip
        one = random_deal(clients, classes)
        rows = shown_rows(one)
        assert len(rows.clients) == min(clients, MAX_ROWS, MAX_CELLS // classes)
        width, height = partition_figure(one).get_size_inches()
        assert width < 11
        assert 3 <= height < 11
        found = Elements(page(one, []))
        assert found.count(kind) == int((rows.counts > 0).sum())
        svg = next(attributes for tag, attributes in found.tags if tag == "svg")
        assert svg["viewbox"] == f"0 0 {svg['width']} {svg['height']}"
        assert int(svg["width"] or 0) <= 640
        assert int(svg["height"] or 0) <= 640
        if len(rows.clients) < clients:
            assert rows.axis == f"clients, by largest class ({len(rows.clients)} of {clients:,} drawn)"
            assert rows.axis in texts(partition_figure(one))


def test_numbers_of_classes_and_clients_do_not_touch() -> None:
    for size, room in [(15, 13), (3, 27), (0.05, 40), (100, 40)]:
        step = label_step(size, room)
        assert step * size >= room
        assert step == 1 or max(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500) if s < step) * size < room


def test_the_page_is_well_formed_needs_nothing_else_and_has_a_value_on_every_bubble() -> None:
    text = page(SMALL, ["a < b", "second"])
    found = Elements(text)
    assert found.count("circle") == 6
    assert "client 0, class 2: 2 samples, 25.0 %" in found.titles
    assert found.titles[0] == "toy, natural(key=<site>)"
    assert {"client 0: 8 samples", "class 0: 7 samples of all clients, 50.0 %"} <= found.captions
    assert "<p>a &lt; b</p>" in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1


def test_the_png_has_the_scale_s_colors_where_the_bubbles_are() -> None:
    figure = partition_figure(SMALL)
    image = Image.open(BytesIO(png(figure))).convert("RGB")
    assert image.size == tuple(int(144 * inches) for inches in figure.get_size_inches())
    found = bubbles(figure)
    for place, color in zip(np.asarray(found.get_offsets()), np.asarray(found.get_facecolor()), strict=True):
        x, y = figure.axes[0].transData.transform(place)
        pixel = image.getpixel((round(x), image.height - round(y)))
        assert isinstance(pixel, tuple)
        wanted = [round(255 * value) for value in color[:3]]
        assert max(abs(a - b) for a, b in zip(pixel, wanted, strict=True)) <= 8


def test_the_scale_darkens_from_end_to_end_and_is_the_figure_s_color_map() -> None:
    assert shade(0) == SCALE[0]
    assert shade(1) == shade(1.5) == SCALE[-1]
    shares = np.linspace(0, 1, 50)
    light = [sum(bytes.fromhex(shade(share)[1:])) for share in shares]
    assert light == sorted(light, reverse=True)
    colors, norm = scale()["cmap"], scale()["norm"]
    for share in shares:
        mapped, wanted = bytes.fromhex(to_hex(colors(norm(share)))[1:]), bytes.fromhex(shade(share)[1:])
        assert max(abs(a - b) for a, b in zip(mapped, wanted, strict=True)) <= 2


def test_a_long_name_loses_its_middle() -> None:
    long = replace(SMALL, partition=f"saved(path={'a' * 500}/run)")
    assert heading(long).startswith("toy, saved(path=aaa")
    assert heading(long).endswith("aaa/run)")
    assert len(heading(long)) == 90
    assert heading(long) in texts(partition_figure(long))


def test_numbers_for_reading() -> None:
    assert [with_commas(x) for x in (3.0, 5.5, 12_345)] == ["3", "5.5", "12,345"]
    assert [fixed(x) for x in (-0.001, -0.5, 0.845)] == ["0.00", "-0.50", "0.84"]
    assert [plural(1, "class"), plural(2000, "class"), plural(0, "sample")] == [
        "1 class", "2,000 classes", "0 samples",
    ]  # fmt: skip


def test_the_docs_show_every_partition_and_their_pictures_are_there() -> None:
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "partitions.md").read_text()
    assert all(f"### {name}\n" in text for name in PARTITIONS)
    pictures = re.findall(r"!\[[^]]+\]\((images/[^)]+)\)", text)
    assert len(pictures) >= 5
    for picture in pictures:
        assert (docs / picture).read_bytes().startswith(b"\x89PNG")
        assert (docs / picture).stat().st_size < 80_000
