"""What is printed: numbers, tables, charts, one safe page."""

import itertools
import re
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gainstage.measure import svg
from gainstage.measure.audits.contamination import Overlap
from gainstage.measure.compare import compare
from gainstage.measure.curves.learning import Curve
from gainstage.measure.metrics import describe, number, short
from gainstage.measure.outcome import Report
from gainstage.measure.report import print_table, render
from gainstage.measure.tables import side_effects, spent

HOSTILE = '"><script>alert(1)</script><img src=x onerror="alert(2)">\'&amp;]]>\x1b[31m| # *x*'
VOID = {"meta", "input", "br", "img", "link", "hr"}


class Page(HTMLParser):
    """Collects tags and attributes, and checks that tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.attributes, self.texts = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *a) for a in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture
def report(make_runs):
    return compare(make_runs({"grpo": 0.5, "better": 0.8, "same": 0.5}, seeds=range(4)), created="2026-01-31")


def test_the_page_is_one_safe_file(report):
    page = Page(render(report))
    assert not {"script", "link", "img", "iframe", "form", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[1].startswith("on") or a[1] in ("src", "href", "style")]
    policy = next(a[2] for a in page.attributes if a[1] == "content" and "default-src" in a[2])
    assert "default-src 'none'" in policy and "script" not in policy
    assert "http" not in render(report).replace("http-equiv", "")


def test_names_and_notes_stay_text_whatever_they_hold(make_runs):
    runs = make_runs({"grpo": 0.5, HOSTILE: 0.7, "other" + HOSTILE: 0.6})
    for run in runs:
        run.notes = [HOSTILE]
        run.spent_by = {HOSTILE: {"answers": 3}}
        run.contamination = {HOSTILE: Overlap(1, 2, 3, (HOSTILE,))}
        run.evaluation = {HOSTILE: run.evaluation["addition"]}
        run.manifest = replace(run.manifest, template=HOSTILE, sampling={HOSTILE: HOSTILE})
        if run.arm.startswith("other"):
            run.manifest = replace(run.manifest, verifier=HOSTILE)
    text = render(compare(runs, title=HOSTILE, created=HOSTILE))
    page = Page(text)
    assert "script" not in page.tags and "img" not in page.tags
    assert not [a for a in page.attributes if a[1].startswith("on")]
    assert "<script" not in text and "<img" not in text
    assert sum("<script>alert(1)</script>" in part for part in page.texts) >= 5


def test_the_page_says_the_verdict_first_and_everything_once(report):
    text = " ".join(Page(render(report)).texts)
    assert text.index("gain confirmed") < text.index("Difference from grpo") < text.index("Learning curves")
    for part in ("Scores", "Side effects", "At equal spend", "What a run really spent", "Held equal", "2026-01-31"):
        assert part in text
    assert "4 paired seeds" in text and "gain confirmed: 1 of 2 arms" in text


def test_steps_of_environments_are_not_called_tokens(make_runs):
    runs = make_runs({"ppo": 0.5, "a2c": 0.8})
    assert not compare(runs).episodes
    for run in runs:
        run.spent = {"env_steps": run.spent["generated_tokens"], "trained_tokens": 9.0}
        run.evaluation_spent = {"env_steps": 30.0}
        run.curve = [
            {name.replace("generated_tokens", "env_steps"): value for name, value in row.items()} for row in run.curve
        ]
    found = compare(runs)
    heads = [column.label for table in (side_effects(found), spent(found)) for column in table.columns]
    assert {"episode length (steps)", "trained steps"} < set(heads) and not [head for head in heads if "token" in head]
    texts = Page(render(found)).texts
    assert "episode length" in texts and "trained steps" in texts and "trained tokens" not in texts


def test_every_budget_axis_has_a_panel_and_the_budgets_own_is_shown_first(report):
    text = render(report)
    axes = report.curves["eval/*/pass@1"]
    assert len(re.findall(r'type="radio"', text)) == len(axes) == 4
    assert len(re.findall(r'class="panel', text)) == 4
    assert re.search(r'id="x0" checked><label for="x0"[^>]*>generated tokens', text)
    assert text.count(" checked>") == 1 and "#x3:checked~.p3{display:block}" in text


def test_one_seed_and_missing_curves_draw_without_bands(make_runs):
    runs = make_runs({"a": 0.4, "b": 0.5}, seeds=(0,))
    text = render(compare(runs))
    assert 'class="band"' not in text and 'class="whisker"' not in text and 'class="seed only"' in text
    assert "one seed gives no interval" in text
    for run in runs:
        run.curve = []
    bare = render(compare(runs))
    assert "Learning curves" not in bare and Page(bare)


def test_what_is_not_comparable_shows_no_number(make_runs, manifest):
    runs = make_runs({"a": 0.3, "b": 0.9})
    for run in runs[3:]:
        run.manifest = replace(manifest, samples=1)
    text = render(compare(runs))
    assert "Why it is not comparable" in text and "Difference from" not in text and 'class="dot"' not in text


def test_a_page_from_saved_json_is_the_same(report):
    assert render(Report.from_json(report.to_json())) == render(report)


def test_markdown_tables_hold_their_columns(make_runs):
    runs = make_runs({"grpo": 0.5, HOSTILE + "\n| new row": 0.6})
    text = compare(runs).markdown()
    assert "<script" not in text and "\x1b" not in text
    tables: list[list[int]] = []
    block: list[int] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            block.append(len(re.findall(r"(?<!\\)\|", line)))
        elif block:
            tables.append(block)
            block = []
    assert len(tables) >= 4 and all(len(set(b)) == 1 and b[0] >= 3 for b in tables)


def test_the_terminal_gets_no_control_characters(make_runs):
    out = StringIO()
    runs = make_runs({"grpo": 0.5, HOSTILE + "[bold]": 0.6})
    print_table(compare(runs), Console(file=out, width=200, force_terminal=False))
    text = out.getvalue()
    assert ("\x1b" not in text and "[bold]" in text and "no difference shown" in text) or "gain confirmed" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (3, "3"), (0.25, "0.250"), (12.345, "12.3"), (99.96, "100"), (1234.4, "1\u202f234"), (10_000, "10k"),
     (123_456, "123k"), (2_000_000, "2M"), (1.25e9, "1.2G"), (3e14, "300T"), (2e-5, "2.0e\u221205"),
     (-0.5, "\u22120.500"), (float("nan"), "\u2013"), (None, "\u2013")],
)  # fmt: skip
def test_short_numbers(value, text):
    assert short(value) == text


def test_rates_are_percent_and_their_differences_points():
    rate = describe("eval/addition/pass@1")
    assert rate.text(0.6123) == "61.2 %" and rate.change(0.041) == "+4.1" and rate.change(-0.0001) == "0.0"
    assert describe("length/mean").change(-0.00479, beside=18.5) == "0.0"
    assert describe("length/mean").change(2.25, beside=18.5) in ("+2.2", "+2.3")
    assert describe("pass@16").meaning.startswith("chance that at least one of 16")
    assert describe("my/own").label == "my/own" and number(-0.01, 1) == "0.0"


@given(st.floats(-1e6, 1e6), st.floats(1e-4, 1e6), st.integers(2, 8))
def test_ticks_cover_the_data_with_few_round_steps(low, width, count):
    ticks = svg.nice_ticks(low, low + width, count)
    step = ticks[1] - ticks[0]
    assert ticks[0] <= low + 1e-6 * step and ticks[-1] >= low + width - 1e-6 * step
    assert 2 <= len(ticks) <= count + 3
    assert ticks == sorted(ticks) and len(set(svg.tick_texts([0.0, 0.25, 0.5], None))) == 3


def test_ticks_of_one_value():
    assert len(svg.nice_ticks(0.5, 0.5)) >= 2 and len(svg.nice_ticks(0, 0)) >= 2


def test_names_at_line_ends_do_not_touch():
    curves = {str(i): Curve([0, 1], [0.5, 0.5], seeds={"0": [[0, 1], [0.5, 0.5]]}) for i in range(7)}
    text = svg.line_chart(curves, list(curves), "eval/*/pass@1", "seconds", width=900, height=380, names=True)
    places = sorted(float(y) for y in re.findall(r'class="end a\d" x="[\d.]+" y="([\d.]+)"', text))
    assert len(places) == 7 and min(b - a for a, b in itertools.pairwise(places)) >= 16.9
    assert places[0] >= 12 and places[-1] <= 341


def test_every_arm_keeps_its_colour_where_it_appears(report):
    text = render(report)
    assert re.search(r'chip a1"[^>]*></i><span>better', text) and re.search(r'class="end a1"[^>]*>better', text)
    assert 'class="interval a1"' in text
