"""report.html works offline, shows what the report holds, and escapes every name of the run."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from markupsafe import escape

from tests.report.sample_report import without_plan
from three_walls.model.config import ConfigValue, RunConfig
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
from three_walls.report.section import PAGE_ROWS
from three_walls.report.sections.moe import CARRYING_PARTS, DIRECTIONS, PARTS

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
    ids = [attributes.get("id") for tag, attributes in Page(page).elements if tag == "section"]
    order = [
        *("verdict", "warnings", "plan", "overrides", "budget", "gaps", "walls", "communication", "moe", "overlap"),
        *("waits", "timers", "efficiency", "recompute", "graphs"),
        *("recipe", "findings", "facts", "config", "steps", "capture", "reading"),
    ]
    assert [name for name in ids if name in order] == order  # a new section may stand anywhere between them


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
    assert [attributes.get("type") for tag, attributes in elements if tag == "script"] == ["application/json", None]
    assert not any(name.startswith("on") for _, attributes in elements for name in attributes)


def test_hostile_names_survive_in_the_charts_as_escaped_text(report: Report) -> None:
    charts = re.findall(r"<figure.*?</figure>", render_html(spoil(report)), re.DOTALL)
    named = [chart for chart in charts if "alert(1)" in chart]
    assert len(named) >= 3  # of the plan, the gaps, the communication
    assert not any("<script" in chart or "<img" in chart for chart in charts)


@pytest.mark.parametrize(
    "shown",
    [
        "Communication-bound: exposed expert all-to-all",
        "492-604 ms",
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
        '">1.34 GB</td>',
        '">31.5 GB/s</td>',
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
        "take 12.2 ms longer per step",
        "&#39;model.cuda_graph_scope=[attn,moe_router,moe_preprocess]&#39;",
    ],
)
def test_the_page_shows(page: str, shown: str) -> None:
    assert shown in page


def test_every_link_of_the_navigation_has_its_section_and_every_section_a_link(page: str, abstained: Report) -> None:
    for text in (page, render_html(abstained)):
        elements = Page(text).elements
        ids = {attributes.get("id") for _, attributes in elements}
        links = [attributes["href"] for tag, attributes in elements if tag == "a"]
        assert [link for link in links if (link or "").removeprefix("#") not in ids] == []
        sections = {attributes["id"] for tag, attributes in elements if tag == "section" and "id" in attributes}
        unnamed = {"verdict", "warnings", "absent"}
        assert sections - unnamed - {(link or "").removeprefix("#") for link in links} == set()


def test_layers_are_shaded_by_their_time(report: Report) -> None:
    parts = (MoePart(0, "forward", "dispatch", 4, 0, 1), MoePart(1, "forward", "expert_gemm", 1, 0, 1))
    text = render_html(replace(report, moe_layers=parts))
    assert '<td class="num heat carrying" style="--heat:100.000%"' in text
    assert '<td class="num heat " style="--heat:25.000%"' in text


def test_warnings_stand_above_the_numbers(page: str) -> None:
    assert page.index("ambiguous_step_boundary") < page.index('id="budget"')


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


def test_the_same_report_gives_the_same_page(report: Report, page: str) -> None:
    assert render_html(report) == page


def test_recompute_and_graphs_have_a_section_only_where_there_are_some(page: str, abstained: Report) -> None:
    without = render_html(abstained)
    for section in ('id="recompute"', 'id="graphs"'):
        assert section in page
        assert section not in without


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
        lines = "\n".join(quote_bridge(step.overrides))
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


def test_the_head_has_the_first_three_entries_with_links_gains_and_lines_to_copy(report: Report, page: str) -> None:
    head = page[page.index("<h1>") : page.index('id="warnings"')]
    for step in report.plan[:3]:
        assert f'<a href="#edit-{step.rule}">{escape(step.finding.title)}</a>' in head
    assert "0-89 ms (0-15%)" in head
    assert 'data-copy="copy-entry-1-megatron-lm"' in head  # the run's launcher
    assert 'data-copy="copy-entry-1-env"' in head
    bridge = render_html(replace(report, config=replace(report.config, dialect="bridge")))
    assert 'data-copy="copy-entry-1-bridge"' in bridge[: bridge.index('id="warnings"')]
    four = render_html(replace(report, plan=(*report.plan, *(replace(report.plan[1], rule=f"r{n}") for n in (3, 4)))))
    assert "1 more entry in the plan" in four


def test_an_entry_of_the_head_that_needs_others_names_them_and_has_no_button(report: Report) -> None:
    first, second = report.plan
    needy = replace(second, overrides=None, needs=(first.rule,), no_overrides_reason="It needs entry 1.")
    head = render_html(replace(report, plan=(first, needy))).partition('id="warnings"')[0]
    assert "together with entry 1" in head
    assert "copy-entry-2" not in head


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


def test_what_to_confirm_first_is_a_check_box_with_its_label(page: str) -> None:
    assert re.search(r'<label><input type="checkbox"[^>]*> <span>deep_ep imports in the training container', page)


def test_the_page_is_light_and_complete_without_its_script(page: str) -> None:
    assert len(page.encode()) < 1_500_000
    body = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert body.count("<figure") == body.count("</figure>") >= 5
    assert "plotly" not in page.lower()


def test_sections_without_data_are_named_at_the_end_alone(abstained: Report) -> None:
    text = render_html(abstained)
    assert '<section id="moe"' not in text
    absent = text[text.index('<section id="absent"') :]
    assert "no MoE layer was recognized" in absent
    assert "no rule could be evaluated" in text[: text.index('<section id="absent"')]  # the plan is always there


def test_headings_have_no_gap_and_table_heads_no_empty_cell(page: str, abstained: Report) -> None:
    for text in (page, render_html(abstained)):
        levels = [int(tag[1]) for tag, _ in Page(text).elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert not re.search(r"<th[^>]*>\s*</th>", text)


def test_numbers_sort_by_their_value_and_defaults_can_be_hidden(page: str) -> None:
    assert re.search(r'<td class="num" data-key="150000000">150 ms</td>', page)
    assert '<tr id="setting-cuda_graph_impl" class="default">' in page
    assert '<tr id="setting-moe_grouped_gemm">' in page


def test_a_page_of_94_layers_stays_light_and_states_how_many_rows_it_leaves_out(report: Report) -> None:
    moved = (2**28, 3.4e11, 4.5e11)
    layers = tuple(
        MoePart(
            layer, direction, part, 1_000_000 + 997 * layer, 500_000, 20, *(moved if part in CARRYING_PARTS else ())
        )
        for layer in range(94)
        for direction in DIRECTIONS
        for part in PARTS
    )
    text = render_html(replace(report, moe_layers=layers))
    assert len(text.encode()) < 1_500_000
    assert f"{94 * len(DIRECTIONS) * len(PARTS) - PAGE_ROWS:,} more rows are in report.json." in text
    assert "more rows are in report.json" not in render_html(replace(report, moe_layers=layers[:40]))


def test_the_head_names_the_run(page: str) -> None:
    assert (
        '<p class="run">qwen3-30b-a3b.node0.sqlite and 1 more; 8 ranks on NVIDIA H100 80GB HBM3; Megatron-LM</p>'
        in page
    )
