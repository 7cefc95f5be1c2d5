"""Axes of charts: labels that can be told apart, limits that a spike cannot blow up, lines cut at the edge."""

import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gainstage.measure import svg
from gainstage.measure.curves.learning import Curve
from gainstage.measure.metrics import describe
from gainstage.measure.ticks import Scale, clipped, limits, nice_ticks, tick_texts


def curve(*runs):
    x = [float(i) for i in range(len(runs[0]))]
    return Curve(x, np.mean(runs, 0).tolist(), seeds={str(i): [x, list(y)] for i, y in enumerate(runs)})


def spiked(height, at=20):
    calm = [0.1 + 0.001 * i for i in range(60)]
    return curve(calm, [height if i == at else v for i, v in enumerate(calm)])


def draw(curves, metric="kl/ref"):
    return svg.line_chart(curves, list(curves), metric, "generated_tokens", width=506, height=240, names=False)


@pytest.mark.parametrize(
    ("ticks", "texts"),
    [
        ([-2e-7, 0.0, 1e-7], ["\u22122\u00b710\u207b\u2077", "0", "1\u00b710\u207b\u2077"]),
        ([0.0, 2.5, 5.0], ["0", "2.5", "5.0"]),
        ([100_000.0, 100_250.0, 100_500.0], ["100.00k", "100.25k", "100.50k"]),
        ([0.0, 25_000.0], ["0", "25k"]),
        ([0.0, 5e-4], ["0", "5\u00b710\u207b\u2074"]),
    ],
)  # fmt: skip
def test_labels_have_one_unit_and_the_digits_they_need(ticks, texts):
    assert tick_texts(ticks, None) == texts


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9), st.integers(2, 8))
@example(0.00294497, 7.9e-09, 5)
def test_labels_differ_wherever_ticks_do(low, width, count):
    if width < 1e-6 * abs(low):
        return
    ticks = nice_ticks(low, low + width, count)
    assert len(set(tick_texts(ticks, None))) == len(ticks) >= 2


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_labels_stay_inside_the_chart(scale):
    text = draw({"a": curve([scale * v for v in (-1.3, 0.2, 1.7)])}, "kl/sampler")
    for x, label in re.findall(r'<text class="tick" x="([\d.]+)"[^>]*text-anchor="end">([^<]*)<', text):
        assert float(x) - 7.3 * len(label) >= 0


def test_one_spike_does_not_flatten_a_panel():
    found = limits({"a": spiked(70.0)}, describe("kl/ref"))
    assert found.above == 70 and found.below is None and 0.15 < found.high < 0.3 and found.low <= 0.1
    found = limits({"a": spiked(-70.0)}, describe("kl/ref"))
    assert found.below == -70 and found.above is None and -0.1 < found.low < 0.1


@pytest.mark.parametrize(
    "calm",
    [
        spiked(0.2),
        curve([2.0 ** (i / 6) for i in range(60)]),
        curve([5.0] * 60),
        curve([0.0] * 59 + [9.0]),
        curve([3.0]),
    ],
)
def test_trends_ends_and_calm_lines_are_shown_whole(calm):
    found = limits({"a": calm}, describe("kl/ref"))
    values = [v for _, y in calm.seeds.values() for v in y]
    assert found.above is None and found.below is None
    assert (found.low, found.high) == (min(values), max(values))


@pytest.mark.parametrize(("metric", "value"), [("length/truncated", 0.0), ("pass@1", 1.0), ("length/mean", 0.0)])
def test_no_axis_goes_where_its_number_cannot_be(metric, value):
    found = limits({"a": curve([value] * 9)}, describe(metric))
    least, most = describe(metric).bounds
    assert least <= found.low <= value <= found.high <= most
    assert ">\u2212" not in draw({"a": curve([value] * 9)}, metric)


def test_the_chart_says_how_far_the_spike_goes():
    text = draw({"calm": spiked(0.15), "wild": spiked(70.0)})
    assert text.count('class="beyond') == 1 and 'class="beyond a1"' in text
    assert "spikes beyond this axis, up to 70" in text and "wild: KL from reference 70" in text
    lines = re.findall(r'class="(?:seed|mean|band)[^"]*" d="M([^"]*)"', text)
    heights = [float(y) for line in lines for y in re.findall(r"[\d.]+ ([\d.]+)", line)]
    assert min(heights) >= 26 and max(heights) <= 200, "no line leaves the frame"
    assert "spikes" not in draw({"calm": spiked(0.15)})


def test_a_line_is_cut_where_it_crosses():
    assert clipped([0, 1, 2], [0, 4, 0], 0, 1) == ([0, 0.25, 1, 1.75, 2], [0, 1, 1, 1, 0])
    assert clipped([0, 1], [-1, 3], 0, 1) == ([0, 0.25, 0.5, 1], [0, 0, 1, 1])
    assert clipped([0, 1], [0.2, 0.3], 0, 1) == ([0, 1], [0.2, 0.3])


def test_powers_of_two_are_equally_far_apart():
    scale = Scale(1, 16, 0, 100, log=True)
    assert [scale(k) for k in (1, 2, 4, 8, 16)] == pytest.approx([0, 25, 50, 75, 100])
