"""The page's colours have the contrast that WCAG 2.2 AA asks for: 4.5:1 for text, 3:1 for lines; by what the stylesheet declares."""

from __future__ import annotations

import re
from importlib import resources

import pytest

CSS = resources.files("specsplit_coordinator.page").joinpath("page.css").read_text("utf-8")
TEXT, LINE = 4.5, 3.0
GROUNDS = ("ground", "panel", "faint")
"""On which any text may stand."""
DECORATION = {"line", "faint"}
"""Colours of what nobody has to see: frames around panels, lines between rows, the grid of a plot."""
Theme = dict[str, str]


def declared(block: str) -> Theme:
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))


def themes() -> dict[str, Theme]:
    """The colours by name; the dark ones replace the light ones."""
    light, dark = map(declared, re.findall(r":root \{(.*?)\}", CSS, re.DOTALL))
    return {"light": light, "dark": light | dark}


def rules() -> list[tuple[str, str]]:
    """Selectors and declarations, without the definitions of colours."""
    plain = re.sub(r"/\*.*?\*/|:root \{.*?\}", "", CSS, flags=re.DOTALL)
    return [(selector.strip(), body) for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", plain)]


def used(*properties: str) -> set[tuple[str, str]]:
    """Each selector with a colour that it gives to one of these properties."""
    named = "|".join(properties)
    pattern = rf"(?:^|;)\s*(?:{named}):[^;]*?var\(--([\w-]+)\)"
    return {(selector, colour) for selector, body in rules() for colour in re.findall(pattern, body)}


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """From 1 to 21, as WCAG defines it."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def is_text(selector: str) -> bool:
    """True if what is filled there are letters, in a drawing."""
    return bool(re.search(r"text$|\.(share|mark|token)$", selector))


def test_the_measure_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert contrast("#abcdef", "#abcdef") == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_can_be_read_on_every_ground(theme: str) -> None:
    colours = themes()[theme]
    texts = {colour for _, colour in used("color")} | {colour for at, colour in used("fill") if is_text(at)}
    texts -= {"panel"}  # on ink, below
    assert texts >= {"ink", "soft", "accent", "warn", "reject", "bonus"}
    weak = {
        (text, ground): round(found, 2)
        for text in texts
        for ground in GROUNDS
        if (found := contrast(colours[text], colours[ground])) < TEXT
    }
    assert weak == {}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(
    ("text", "ground"),
    [
        ("panel", "ink"),  # the root of a tree
        ("ink", "accent-ground"),
        ("accent", "accent-ground"),
        ("ink", "bonus-ground"),
        ("bonus", "bonus-ground"),
        ("warn", "warn-ground"),
    ],
)
def test_texts_in_boxes_can_be_read(theme: str, text: str, ground: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[text], colours[ground]) >= TEXT


def test_no_box_has_a_ground_that_is_not_among_these() -> None:
    grounds = {colour for _, colour in used("background")} | {colour for at, colour in used("fill") if not is_text(at)}
    assert grounds - {*GROUNDS, "accent"} == {"accent-ground", "bonus-ground", "warn-ground", "ink"}
    assert {at for at, colour in used("background") if colour == "accent"} == {".meter i b"}, "without text"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_line_that_says_something_is_seen(theme: str) -> None:
    colours = themes()[theme]
    lines = used("stroke", r"border[\w-]*", r"text-decoration[\w-]*", r"outline[\w-]*")
    assert {("axis", at) for at, colour in lines if colour == "axis"} >= {("axis", ".axes svg"), ("axis", ".link")}
    seen = {colour for _, colour in lines} - DECORATION
    weak = {
        (line, ground): round(found, 2)
        for line in seen
        for ground in GROUNDS
        if (found := contrast(colours[line], colours[ground])) < LINE
    }
    assert weak == {}


def test_what_is_decoration_marks_nothing_but_frames_rows_and_grids() -> None:
    faint = {at for at, colour in used("stroke", r"border[\w-]*") if colour in DECORATION}
    assert faint == {".panel", ".member", ".group", "td", ".axes path.grid"}


def test_nothing_is_made_paler_than_its_colour() -> None:
    assert not re.findall(r"(?<![\w-])opacity: *[\d.]+", CSS)
