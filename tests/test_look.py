"""Colours can be told apart with any colour vision and stand out; rules have words; axes have three marks."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import paceline
from paceline import look
from paceline.strategies.catalogue import STRATEGIES
from paceline.trace.timeline import KINDS

WHITE, DARK = "#ffffff", "#171c25"  # --panel of report.css
# Machado, Oliveira & Fernandes, A physiologically-based model for simulation of color vision deficiency, severity 1.0
VISIONS = {
    "usual": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]


def linear(tone: str) -> np.ndarray:
    parts = np.array([int(tone[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """WCAG 2.2, relative luminance."""
    low, high = sorted(float(np.array(XYZ[1]) @ linear(each)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(light: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b*, in which two colours 2.3 apart are just told apart side by side."""
    ratio = np.array(XYZ) @ np.clip(light, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_families_can_be_told_apart_with_any_colour_vision(vision: str, theme: str) -> None:
    seen = [lab(np.array(VISIONS[vision]) @ linear(getattr(each, theme))) for each in (*look.FAMILIES, look.OTHER)]
    assert min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2)) > 18


def test_lines_stand_out_from_the_ground() -> None:
    for each in (*look.FAMILIES, look.OTHER):
        assert contrast(each.light, WHITE) >= 3
        assert contrast(each.dark, DARK) >= 3


@pytest.mark.parametrize("named", STRATEGIES, ids=lambda named: named.names[0])
def test_every_rule_has_a_family_and_words(named: object) -> None:
    found = [each for each in look.FAMILIES if named.names[0] in each.rules]  # type: ignore[attr-defined]
    assert len(found) == 1
    assert look.family(named.example) is found[0]  # type: ignore[attr-defined]
    words = look.words(named.example, 16)  # type: ignore[attr-defined]
    assert not set("=:_/") & set(words)
    assert words


@pytest.mark.parametrize(
    ("rule", "workers", "words"),
    [
        ("k-sgd:quorum=8", 16, "K-SGD, 8 of 16"),
        ("k-sgd:quorum=8", None, "K-SGD, first 8"),
        ("lgc:quorum=5,blocks=4", 8, "LGC-SGD, 5 of 8, 4 blocks"),
        (paceline.LiveCompensation(5, blocks=8), 8, "LGC-SGD, 5 of 8, 8 blocks"),
        (paceline.LiveCompensation(5, blocks=1), 8, "LGC-SGD, 5 of 8, 1 block"),
        ("ma:every=16", 4, "local SGD, every 16"),
        ("ma:every=16,waits=k-sgd:quorum=6", 8, "local SGD, every 16, waits by K-SGD, 6 of 8"),
        ("gsgd:groups=labels", 8, "group SGD, by label"),
        (paceline.Grouped([[0, 1], [2]], inside=paceline.FastestK(1)), 3, "group SGD, 2 groups, inside K-SGD, first 1"),
        ("unequal:total=128,inside=k-sgd:quorum=7", 8, "unequal batches, 128 samples, inside K-SGD, 7 of 8"),
        ("lgc:quorum=7,recall=false", 10, "LGC-SGD, 7 of 10, no recall"),
        ("ddp", 4, "DDP"),
        ("my own rule: better", 4, "my own rule: better"),
    ],
)
def test_words(rule: "look.Rule", workers: int | None, words: str) -> None:
    assert look.words(rule, workers) == words


def test_a_rule_of_ones_own_is_called_by_its_class() -> None:
    class MyRule(paceline.strategy.Strategy):
        def decide(self, ledger: paceline.strategy.Ledger) -> list[paceline.strategy.Decision]:
            return []

    assert look.words(MyRule()) == "MyRule"
    assert look.family(MyRule()) is look.OTHER


def test_every_line_of_a_figure_has_its_own_dashes_and_a_rule_its_colour() -> None:
    rules = [
        "ssgd",
        "asgd",
        "k-sgd:quorum=8",
        "k-sgd:quorum=12",
        "k-sgd:quorum=14",
        "lgc:quorum=8",
        "ma:every=4",
        "ddp",
    ]
    styles = look.lines(rules)
    assert len({str(each["linestyle"]) for each in styles}) == len(rules)
    assert len({each["color"] for each in styles}) == len(rules)
    assert styles[2]["color"] == look.colour("k-sgd:quorum=3") == look.line(paceline.FastestK(2))["color"]
    assert [each["marker"] for each in styles[2:5]] == [look.family("k-sgd:quorum=8").marker] * 3


def drawn(low: float, high: float, scale: str) -> Figure:
    figure = Figure(figsize=(3, 2), layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.plot([low, high], [low, high])
    axis.set_xscale(scale)
    axis.set_yscale(scale)
    look.tidy(axis, "title", "across", "up")
    return figure


@pytest.mark.parametrize(
    ("low", "high"), [(1e-9, 1e9), (1, 30_000), (1, 100), (0.8, 2.3), (0.31, 0.345), (3.0, 3.001), (7, 12), (41, 43)]
)
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_axes_have_at_least_three_labelled_marks(low: float, high: float, scale: str) -> None:
    figure = drawn(low, high, scale)
    figure.draw_without_rendering()
    axis = figure.axes[0]
    for side, (first, last) in ((axis.xaxis, axis.get_xlim()), (axis.yaxis, axis.get_ylim())):
        labels = [each for each in side.get_ticklabels() if each.get_text()]
        places = [place for place in side.get_majorticklocs() if first <= place <= last]
        assert 3 <= len(places) <= 10
        assert len({each.get_text() for each in labels}) >= 3


def test_logarithmic_marks_lie_inside() -> None:
    for low, high in ((0.2, 0.5), (1, 1.0001), (2, 9_000)):
        marks = look.log_marks(low, high)
        assert len(marks) >= 3
        assert marks == sorted(set(marks))
        assert all(low <= each <= high or math.isclose(each, low) for each in marks)


def test_figures_are_written_whole_and_timelines_have_colours(tmp_path: Path) -> None:
    assert set(look.KINDS) == set(KINDS)
    look.write(drawn(1, 2, "linear"), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
