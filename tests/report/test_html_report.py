"""report.html works offline, shows what the report holds, and escapes every name of the run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from markupsafe import escape
from plotly.offline import get_plotlyjs

from tests.report.sample_report import without_plan
from three_walls.model.config import ConfigValue, RunConfig
from three_walls.model.finding import FirstTrial
from three_walls.model.report import (
    Alignment,
    CommunicationTime,
    CopyBandwidth,
    Efficiency,
    GapCause,
    MoePart,
    OverlapSlowdown,
    Report,
    ReportWarning,
    Straggler,
    UnclassifiedKernel,
    Wait,
)
from three_walls.report.html_report import render_html
from three_walls.report.overrides_file import quote_bridge

HOSTILE = '<script>alert(1)</script></script><img src=x onerror="alert(2)">\u2028{{ 7 * 7 }}'


class Page(HTMLParser):
    """Elements of a page, the text of its data script, and ids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.figures = ""
        self._in_figures = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._in_figures = tag == "script" and dict(attrs).get("id") == "figures"

    def handle_endtag(self, tag: str) -> None:
        self._in_figures = self._in_figures and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._in_figures:
            self.figures += data


def without_plotly(page: str) -> str:
    """The page without plotly's own script."""
    script = get_plotlyjs()
    assert page.count(script) <= 1
    return page.replace(script, "")


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


def test_sections_stand_in_reading_order(page: str) -> None:
    ids = [attributes.get("id") for tag, attributes in Page(without_plotly(page)).elements if tag == "section"]
    order = [
        *("verdict", "warnings", "budget", "gaps", "walls", "plan", "overrides", "recipe"),
        *("communication", "waits", "timers", "moe", "overlap", "recompute", "graphs", "efficiency", "findings"),
        *("facts", "config", "steps", "capture", "reading"),
    ]
    assert [name for name in ids if name in order] == order  # a new section may stand anywhere between them


def test_the_page_requests_nothing(page: str) -> None:
    text = without_plotly(page)
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"@import|fetch\(|XMLHttpRequest|url\(|import\(", text)
    assert "default-src 'none'" in text
    for tag, attributes in Page(text).elements:
        assert "src" not in attributes, tag
        assert tag != "link"
        assert (attributes.get("href") or "#").startswith("#")


def test_plotly_is_embedded_once_and_cannot_end_its_script_early(page: str) -> None:
    assert page.count(get_plotlyjs()) == 1
    assert "</script" not in get_plotlyjs().lower()


def test_hostile_names_stay_text(report: Report) -> None:
    text = without_plotly(render_html(spoil(report)))
    assert "<script>alert(1)" not in text
    assert "<img" not in text
    assert "\u2028" not in Page(text).figures
    assert "{{ 7 * 7 }}" in text
    elements = Page(text).elements
    assert sum(tag == "script" for tag, _ in elements) == 3
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)


def test_hostile_names_survive_in_the_figures_as_escaped_text(report: Report) -> None:
    figures = json.loads(Page(without_plotly(render_html(spoil(report)))).figures)
    assert "<" not in figures["communication"]["data"][0]["y"][0]
    assert "<" not in figures["gaps"]["data"][0]["name"]
    assert "<script" not in figures["gaps"]["data"][0]["hovertemplate"]
    assert "<script" not in figures["plan"]["data"][0]["customdata"][1]


@pytest.mark.parametrize(
    "shown",
    [
        "Communication wall",
        "520-632 ms",
        "23.4%",
        "0-89 ms",
        "changes numerics",
        "deep_ep imports in the training container",
        "exposed-ep-alltoall-deepep",
        "ambiguous_step_boundary",
        "9f2c41d0a7bb",
        "triton_poi_fused_add_mul_sigmoid_7",
        "Profile the same steps again",
        "Blocking time: exposed communication may delay nobody.",
        "NVTX_EVENTS",
        "runs no compute kernel for 237 ms",
        "made no CUDA call: Python, data loading, locks.",
        "<span>cudaStreamSynchronize until gemm on stream 7</span>",
        "Rank 0 made the others wait 12.0 ms per step",
        "0.042 ms at the 95th percentile",
        '<span class="badge good">resolved</span></td>',
        '<span class="badge">estimated</span></td>',
        "too few calls to compare",
        ">8 of 8 ranks</td>",
        '<td class="num">1.34 GB</td>',
        '<td class="num">31.5 GB/s</td>',
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
        "take 12.2 ms longer per step",
        "&#39;model.cuda_graph_scope=[attn,moe_router,moe_preprocess]&#39;",
    ],
)
def test_the_page_shows(page: str, shown: str) -> None:
    assert shown in without_plotly(page)


def test_every_link_of_the_navigation_has_its_section_and_every_section_a_link(page: str, abstained: Report) -> None:
    for text in (page, render_html(abstained)):
        elements = Page(without_plotly(text)).elements
        ids = {attributes.get("id") for _, attributes in elements}
        links = [attributes["href"] for tag, attributes in elements if tag == "a"]
        assert [link for link in links if (link or "").removeprefix("#") not in ids] == []
        sections = {attributes["id"] for tag, attributes in elements if tag == "section" and "id" in attributes}
        at_the_top = {"verdict", "warnings"}
        assert sections - at_the_top - {(link or "").removeprefix("#") for link in links} == set()


def test_layers_are_shaded_by_their_time(report: Report) -> None:
    parts = (MoePart(0, "forward", "dispatch", 4, 0, 1), MoePart(1, "forward", "expert_gemm", 1, 0, 1))
    text = without_plotly(render_html(replace(report, moe_layers=parts)))
    assert '<td class="num heat carrying" style="--heat:100.000%"' in text
    assert '<td class="num heat " style="--heat:25.000%"' in text


def test_warnings_stand_above_the_numbers(page: str) -> None:
    assert page.index("ambiguous_step_boundary") < page.index('id="budget"')


def test_an_abstention_renders_without_figures_or_zeros(abstained: Report) -> None:
    text = render_html(abstained)
    assert "No wall named" in text
    assert "No steps were found" in text
    assert ">0 ms" not in without_plotly(text)
    assert get_plotlyjs() not in text


def test_an_abstention_between_known_walls_renders_their_upper_bounds(report: Report) -> None:
    close = replace(report.verdict, wall=None, abstained=True, reason="Two walls are within 1% of the step.")
    text = without_plotly(render_html(replace(report, verdict=close)))
    assert "No wall named" in text
    assert "148 ms" in text


@pytest.mark.parametrize(("off_ns", "source"), [(0, "by the log"), (1, "by replay")])
def test_the_step_without_the_profiler_has_its_source(report: Report, off_ns: int, source: str) -> None:
    assert report.log is not None
    assert report.log.unprofiled_step_ns is not None
    verdict = replace(report.verdict, replayed_step_ns=report.log.unprofiled_step_ns + off_ns)
    page = render_html(replace(report, verdict=verdict))
    assert re.search(rf"Without the profiler</dt><dd>[^<]*</dd><dd[^>]*>{source}<", page)


def test_an_empty_plan_is_stated(report: Report) -> None:
    text = without_plotly(render_html(without_plan(report)))
    assert "no rule recommends an edit" in text
    assert "data-copy" not in text.split("<script")[0]


def test_the_same_report_gives_the_same_page(report: Report, page: str) -> None:
    assert render_html(report) == page


def test_recompute_and_graphs_have_a_section_only_where_there_are_some(page: str, abstained: Report) -> None:
    without = render_html(abstained)
    for section in ('id="recompute"', 'id="graphs"'):
        assert section in page
        assert section not in without


def test_each_entry_has_an_anchor_and_its_own_lines_to_copy(report: Report, page: str) -> None:
    elements = Page(without_plotly(page)).elements
    anchors = [attributes.get("id") for tag, attributes in elements if tag == "article" and attributes.get("id")]
    assert anchors == [f"edit-{step.rule}" for step in report.plan]
    targets = [attributes["data-copy"] for tag, attributes in elements if "data-copy" in attributes]
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(set(ids)) == len(ids)
    for step in report.plan:
        assert step.overrides is not None
        for form in ("bridge", "megatron-lm"):
            assert f"copy-entry-{step.order}-{form}" in targets
        lines = "\n".join(quote_bridge(step.overrides))
        assert f'<pre id="copy-entry-{step.order}-bridge">{escape(lines)}</pre>' in page
    assert set(targets) <= set(ids)
    assert "copy-entry-1-env" in targets
    assert "copy-entry-2-env" not in targets


def test_an_entry_that_needs_others_names_them_and_offers_no_lines(report: Report) -> None:
    reason = "It needs entry 1 (x) to be applied with it. Alone: <b>x</b> is off"
    blocked = replace(report.plan[1], overrides=None, needs=("x",), no_overrides_reason=reason)
    text = without_plotly(render_html(replace(report, plan=(report.plan[0], blocked))))
    assert f"<b>Not on its own.</b> {escape(reason)}" in text
    assert "copy-entry-2-" not in text
    assert "copy-entry-1-bridge" in text


def test_the_head_links_to_the_first_trial(report: Report, page: str) -> None:
    first = report.plan[0]
    trial = FirstTrial(first.rule, HOSTILE, "modelled", None, None, None, None, None, None, False, "")
    text = without_plotly(render_html(replace(report, first_trial=trial)))
    head = text[: text.index('id="warnings"')]
    shown = escape(HOSTILE.replace("\u2028", "\\u2028"))  # spelled out, as every control character
    assert f'<a href="#edit-{first.rule}">{shown}</a>' in head
    assert "First trial" not in page  # this report has none
