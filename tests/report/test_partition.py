"""The table, the picture and the page of a deal: what they show, of few clients and of many."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO, StringIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from kedge.data.partitions.partition import PARTITIONS
from kedge.report.pages.partition import page
from kedge.report.partition import Deal, counted, document, number, rounded
from kedge.report.plots.partition import drawing
from kedge.report.plots.partition_rows import CELLS, ROWS, rows_of
from kedge.report.plots.png import png
from kedge.report.plots.shapes import SCALE, Box, Circle, Drawing, Text, shade
from kedge.report.tables.partition import amounts, rendered, verdict

VOID = {"meta"}


def deal(counts: list[list[int]], tests: int = 0, left: int = 0) -> Deal:
    return Deal("toy", "natural(key=<site>)", 3, np.array(counts), np.full(len(counts), tests), left)


def random_deal(clients: int, classes: int, size: int = 20) -> Deal:
    rng = np.random.default_rng(0)
    priors = rng.dirichlet([0.3] * classes, clients)
    counts = np.array([rng.multinomial(rng.integers(1, 2 * size), prior) for prior in priors])
    return Deal("toy", "dirichlet(alpha=0.3)", 0, counts, np.zeros(clients, dtype=np.int64))


class Elements(HTMLParser):
    """Elements and titles of a page; fails where tags do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.titles: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def shown(one: Deal) -> list[list[str]]:
    out = Console(width=160, record=True, file=StringIO())
    out.print(rendered(one))
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
    assert amounts(SMALL) == "3 clients · 3 classes · 14 training samples · 3 in local tests · 2 to nobody"
    assert amounts(deal([[1]])) == "1 client · 1 class · 1 training sample"
    value, parts = verdict(deal([[1, 1], [1, 1]]))
    assert value.startswith("heterogeneity -0.500 (0: as in a random deal, 1: every client holds one class")
    assert parts.endswith("whole's 0.000; in a random deal 0.167, with one class each 0.500")


def test_few_clients_are_bubbles_whose_area_is_the_number_of_samples() -> None:
    picture = drawing(SMALL)
    bubbles = {shape.title: shape for shape in picture.shapes if isinstance(shape, Circle)}
    assert len(bubbles) == 6
    large = bubbles["client 0, class 0: 6 samples, 75.0 %"]
    small = bubbles["client 2, class 2: 1 sample, 33.3 %"]
    assert (large.radius / small.radius) ** 2 == pytest.approx(6)
    assert large.color == shade(0.75)
    assert small.x > large.x
    assert small.y > large.y
    assert "client 0: 8 samples" in {shape.title for shape in picture.shapes if isinstance(shape, Box)}
    texts = [shape.text for shape in picture.shapes if isinstance(shape, Text)]
    assert texts[0] == "toy, natural(key=<site>)"
    assert re.fullmatch(r"3 clients · heterogeneity 0\.\d\d \(0: random deal, 1: one class each\)", texts[1])
    assert {"class", "client", "samples", "all"} <= set(texts)


def test_a_single_sample_among_many_is_seen() -> None:
    radii = [s.radius for s in drawing(deal([[100_000, 1]])).shapes if isinstance(s, Circle)]
    assert min(radii) > 1


def test_many_clients_are_a_heat_map_in_the_order_of_their_largest_class() -> None:
    one = random_deal(100, 5)
    rows = rows_of(one)
    assert sorted(rows.clients.tolist()) == list(range(100))
    largest = one.largest[rows.clients]
    assert (np.diff(largest) >= 0).all()
    purity = one.shares.max(axis=1)[rows.clients]
    assert all((np.diff(purity[largest == label]) <= 0).all() for label in range(5))
    assert rows.sizes.tolist() == sorted(one.sizes.tolist(), reverse=True)
    picture = drawing(one)
    assert not [shape for shape in picture.shapes if isinstance(shape, Circle)]
    cells = [s for s in picture.shapes if isinstance(s, Box) and s.title.startswith("client ")]
    assert len(cells) == int((one.counts > 0).sum())
    least = f"100 of 100 clients have at least {counted(int(one.sizes.min()), 'sample')}"
    assert least in {s.title for s in picture.shapes if isinstance(s, Box)}


@pytest.mark.parametrize(
    ("clients", "classes", "kind"),
    [(2, 2, Circle), (40, 40, Circle), (41, 2, Box), (2, 200, Box), (3000, 10, Box), (10_000, 200, Box)],
)
def test_any_size_fits_on_a_page(clients: int, classes: int, kind: type) -> None:
    one = random_deal(clients, classes)
    picture, rows = drawing(one), rows_of(one)
    assert len(rows.clients) == min(clients, ROWS, CELLS // classes)
    assert picture.width <= 900
    assert picture.height <= 900
    drawn = [s for s in picture.shapes if isinstance(s, kind) and ", class " in getattr(s, "title", "")]
    assert len(drawn) == int((rows.counts > 0).sum())
    labels = [s for s in picture.shapes if isinstance(s, Text) and s.size == 10 and s.anchor == "middle"]
    gaps = np.diff([s.x for s in labels])
    assert (gaps >= 6 * max(len(s.text) for s in labels)).all()  # numbers of classes do not touch
    for shape in picture.shapes:
        assert 0 <= shape.x <= picture.width
        assert 0 <= shape.y <= picture.height
        if isinstance(shape, Box):
            assert shape.x + shape.width <= picture.width
            assert shape.y + shape.height <= picture.height
    if len(rows.clients) < clients:
        said = f"clients, by largest class ({len(rows.clients)} of {clients:,} drawn)"
        assert said in {s.text for s in picture.shapes if isinstance(s, Text)}


def test_the_page_is_well_formed_needs_nothing_else_and_has_a_value_on_every_bubble() -> None:
    text = page(drawing(SMALL), ["a < b", "second"])
    found = Elements(text)
    assert found.count("circle") == 6
    assert "client 0, class 2: 2 samples, 25.0 %" in found.titles
    assert found.titles[0] == "toy, natural(key=<site>)"
    assert "<p>a &lt; b</p>" in text
    assert not re.search(r"(src|href)=|url\(|@import", text)
    assert text.count("http") == text.count('xmlns="http://www.w3.org/2000/svg"') == 1
    svg = next(attributes for tag, attributes in found.tags if tag == "svg")
    picture = drawing(SMALL)
    assert svg["viewbox"] == f"0 0 {picture.width} {picture.height}"


def test_the_png_has_the_drawing_s_colors_where_its_shapes_are() -> None:
    picture = drawing(SMALL)
    image = Image.open(BytesIO(png(picture))).convert("RGB")
    assert image.size == (2 * picture.width, 2 * picture.height)
    for shape in picture.shapes:
        if isinstance(shape, Circle) and shape.radius > 4:
            wanted = tuple(bytes.fromhex(shape.color[1:]))
            pixel = image.getpixel((round(2 * shape.x), round(2 * shape.y)))
            assert isinstance(pixel, tuple)
            assert max(abs(a - b) for a, b in zip(pixel, wanted, strict=True)) <= 8


def test_later_boxes_cover_earlier_ones_in_the_png() -> None:
    boxes = (Box(0, 0, 10, 10, "#000000"), Box(2, 2, 4, 4, "#ff0000"))
    image = Image.open(BytesIO(png(Drawing(10, 10, "two", boxes)))).convert("RGB")
    assert image.getpixel((8, 8)) == (255, 0, 0)
    assert image.getpixel((16, 16)) == (0, 0, 0)


def test_the_scale_darkens_from_end_to_end() -> None:
    assert shade(0) == SCALE[0]
    assert shade(1) == shade(1.5) == SCALE[-1]
    light = [sum(bytes.fromhex(shade(share)[1:])) for share in np.linspace(0, 1, 50)]
    assert light == sorted(light, reverse=True)


def test_a_long_name_loses_its_middle() -> None:
    long = replace(SMALL, partition=f"saved(path={'a' * 500}/run)")
    picture = drawing(long)
    assert picture.name.startswith("toy, saved(path=aaa")
    assert picture.name.endswith("aaa/run)")
    assert len(picture.name) == 90
    assert picture.width <= 900


def test_numbers_for_reading() -> None:
    assert [number(x) for x in (3.0, 5.5, 12_345)] == ["3", "5.5", "12,345"]
    assert [rounded(x) for x in (-0.001, -0.5, 0.845)] == ["0.00", "-0.50", "0.84"]
    assert [counted(1, "class"), counted(2000, "class"), counted(0, "sample")] == [
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
