"""report.html works offline, shows what the report holds, and escapes every name of the run."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

from markupsafe import escape

from tests.report.sample_report import without_plan
from three_walls.export.step_detail_rows import HostFrame, KernelPlace
from three_walls.facts.fact_rows import CopyBandwidth, Efficiency, MoePart, OverlapSlowdown
from three_walls.lib.report_warning import ReportWarning
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.report.html_report import render_html
from three_walls.report.overrides_file import quote_bridge
from three_walls.report.report import Report
from three_walls.report.section import PAGE_ROWS
from three_walls.report.sections.moe import CARRYING_PARTS
from three_walls.step.step_rows import Alignment, CommunicationTime, GapCause, Straggler, UnclassifiedKernel, Wait
from three_walls.tables.model_parts import DIRECTIONS, MOE_PARTS

HOSTILE = '<script>alert(1)</script></script><img src=x onerror="alert(2)">\u2028{{ 7 * 7 }}'


class Page(HTMLParser):
    """Elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))


def spoil(report: Report, attack: str = HOSTILE) -> Report:
    """The report of a run whose every free name is an attack."""
    ranks = tuple(
        replace(
            rank,
            host=attack,
            gpu=attack,
            communication={attack: CommunicationTime(2, 1, 1)},
            gap_causes=(GapCause(attack, 1, attack),),
        )
        for rank in report.ranks
    )
    return replace(
        report,
        inputs=tuple(replace(file, path_name=attack) for file in report.inputs),
        unclassified=(UnclassifiedKernel(attack, 1, 1),),
        kernels=tuple(
            replace(kernel, name=attack, full_name=attack, places=(KernelPlace("experts", None, attack, 1, 1),))
            for kernel in report.kernels
        ),
        host_frames=(
            HostFrame(1, 0, attack, 0, 50_000_000, 0, 1),
            HostFrame(1, 1, attack, 0, 50_000_000, 50_000_000, 2),
        ),
        host_work=tuple(replace(row, range=attack, operator=attack) for row in report.host_work),
        config=RunConfig(values={attack: ConfigValue(attack, attack)}, dialect=attack),
        warnings=(ReportWarning("hostile", attack),),
        plan=tuple(replace(s, finding=replace(s.finding, title=attack, reason=attack)) for s in report.plan),
        overrides=replace(report.overrides, bridge=(attack,)),
        capabilities={attack: attack},
        ranks=ranks,
        stragglers=(Straggler(0, 1, attack, attack),),
        waits=(Wait(attack, 0, 1, 1, None, False, attack),),
        alignment=Alignment(attack, None, None),
        moe_layers=(MoePart(0, attack, attack, 1, 1, 1),),
        overlap_slowdown=(OverlapSlowdown(attack, attack, 1, 1, 1, 1, 1),),
        efficiency=(Efficiency(attack, 1, 1, 1.0, 1, 1.0, attack),),
        copies=(CopyBandwidth(attack, 1, 1, 1, 1, 1.0, 1),),
    )


def test_the_page_requests_nothing(page: str) -> None:
    text = page
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\(|import\(", text)
    assert "default-src 'none'" in text
    for tag, attributes in Page(text).elements:
        assert "src" not in attributes, tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")


def test_hostile_names_stay_text(report: Report) -> None:
    text = render_html(spoil(report))
    assert "<script>alert(1)" not in text
    assert "<img" not in text
    assert "\u2028" not in text
    assert "{{ 7 * 7 }}" in text
    elements = Page(text).elements
    assert [attributes.get("type") for tag, attributes in elements if tag == "script"] == ["text/plain", None]
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)


def test_hostile_names_survive_in_the_charts_as_escaped_text(report: Report) -> None:
    charts = re.findall(r"<figure.*?</figure>", render_html(spoil(report)), re.DOTALL)
    named = [chart for chart in charts if "alert(1)" in chart]
    assert len(named) >= 3  # of the plan, the gaps, the communication
    assert not any("<script" in chart or "<img" in chart for chart in charts)


def test_every_link_of_the_navigation_has_its_section_and_every_section_a_link(page: str, abstained: Report) -> None:
    for text in (page, render_html(abstained)):
        elements = Page(text).elements
        ids = {attributes.get("id") for _, attributes in elements}
        links = [attributes["href"] for tag, attributes in elements if tag == "a"]
        assert [link for link in links if (link or "").removeprefix("#") not in ids] == []
        sections = {attributes["id"] for tag, attributes in elements if tag == "section" and "id" in attributes}
        unnamed = {"verdict", "warnings", "absent"}
        assert sections - unnamed - {(link or "").removeprefix("#") for link in links} == set()


def test_an_abstention_renders_without_charts_or_zeros(abstained: Report) -> None:
    text = render_html(abstained)
    assert "No wall named" in text
    assert "No steps were found" in text
    assert ">0 ms" not in text
    assert "<figure" not in text


def test_an_abstention_between_known_walls_renders_their_upper_bounds(report: Report) -> None:
    close = replace(report.verdict, wall=None, abstained=True, reason="Two walls are within 1% of the step.")
    text = render_html(replace(report, verdict=close))
    assert "No wall named" in text
    assert "148 ms" in text


def step_now(page: str) -> tuple[str, str]:
    """The step in the head, and where it is from."""
    found = re.search(r"Step now</dt><dd>([^<]*)</dd><dd[^>]*>([^<]*)<", page)
    assert found is not None
    return found[1], found[2]


def test_the_step_of_the_head_is_the_log_s_then_the_replayed_one_then_the_traced_one(report: Report) -> None:
    assert step_now(render_html(report)) == ("612 ms", "by the log; traced: 640 ms")
    replayed = replace(report, log=None, verdict=replace(report.verdict, replayed_step_ns=600_000_000))
    assert step_now(render_html(replayed)) == ("600 ms", "estimated without the profiler; traced: 640 ms")
    assert step_now(render_html(replace(report, log=None))) == ("640 ms", "traced, so it includes the profiler")


def test_an_empty_plan_is_stated(report: Report) -> None:
    text = render_html(without_plan(report))
    assert "no rule recommends an edit" in text
    assert "data-copy" not in text.split("<script")[0]


def test_each_entry_has_an_anchor_and_its_own_lines_to_copy(report: Report, page: str) -> None:
    elements = Page(page).elements
    anchors = [attributes.get("id") for tag, attributes in elements if tag == "article" and attributes.get("id")]
    entries = [anchor for anchor in anchors if (anchor or "").startswith("edit-")]
    assert entries == [f"edit-{step.rule}" for step in report.plan]
    targets = [attributes["data-copy"] for tag, attributes in elements if "data-copy" in attributes]
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for step in report.plan:
        assert step.overrides is not None
        for form in ("bridge", "megatron-lm"):
            assert f"copy-entry-{step.order}-{form}" in targets
        lines = "\n".join(quote_bridge(step.overrides.bridge))
        assert f'<pre id="copy-entry-{step.order}-bridge" tabindex="0">{escape(lines)}</pre>' in page
    assert set(targets) <= set(ids)
    assert "copy-entry-1-env" in targets
    assert "copy-entry-2-env" not in targets


def test_an_entry_that_needs_others_names_them_and_offers_no_lines(report: Report) -> None:
    reason = "It needs entry 1 (x) to be applied with it. Alone: <b>x</b> is off"
    blocked = replace(report.plan[1], overrides=None, needs=("x",), no_overrides_reason=reason)
    text = render_html(replace(report, plan=(report.plan[0], blocked)))
    assert f"<b>Not on its own.</b> {escape(reason)}" in text
    assert "copy-entry-2-" not in text
    assert "copy-entry-1-bridge" in text


def test_no_entry_promises_more_than_the_present_step(report: Report) -> None:
    assert report.log is not None
    assert report.log.unprofiled_step_ns == 612_000_000  # 640 as traced
    page = render_html(report)
    promised = re.search(r"After the plan</dt><dd>([^<]*) ms", page)
    assert promised is not None
    assert max(map(int, promised[1].split("-"))) <= 612
    afters = re.findall(r"Step after it</span><b>([^<]*) ms", page)
    assert afters
    assert all(int(bound) <= 612 for after in afters for bound in after.split("-"))


def test_the_page_is_light_and_complete_without_its_script(page: str) -> None:
    assert len(page.encode()) < 1_500_000
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert body.count("<figure") == body.count("</figure>") >= 5
    assert "plotly" not in page.lower()


def test_headings_have_no_gap_and_table_heads_no_empty_cell(page: str, abstained: Report) -> None:
    for text in (page, render_html(abstained)):
        levels = [int(tag[1]) for tag, _ in Page(text).elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert not re.search(r"<th[^>]*>\s*</th>", text)


def test_a_page_of_94_layers_stays_light_and_states_how_many_rows_it_leaves_out(report: Report) -> None:
    moved = (2**28, 3.4e11, 4.5e11)
    layers = tuple(
        MoePart(
            layer, direction, part, 1_000_000 + 997 * layer, 500_000, 20, *(moved if part in CARRYING_PARTS else ())
        )
        for layer in range(94)
        for direction in DIRECTIONS
        for part in MOE_PARTS
    )
    text = render_html(replace(report, moe_layers=layers))
    assert len(text.encode()) < 1_500_000
    assert f"{94 * len(DIRECTIONS) * len(MOE_PARTS) - PAGE_ROWS:,} more rows are in report.json." in text
    assert "more rows are in report.json" not in render_html(replace(report, moe_layers=layers[:40]))


def test_a_notebook_shows_the_page_in_a_frame_that_leaves_the_notebook_alone(report: Report, page: str) -> None:
    frame = report._repr_html_()  # what IPython asks for
    assert frame.count("<") == 2  # of the frame alone: the page within is escaped
    assert 'sandbox="allow-scripts"' in frame
    assert html.unescape(frame.partition('srcdoc="')[2].removesuffix('"></iframe>')) == page
