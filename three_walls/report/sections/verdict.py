"""The head of the report: the wall that holds the run back, the step's length now and after the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from three_walls.advice import verdict_thresholds
from three_walls.advice.finding import CONVERGENCE_CHANGING, Finding, Outcome
from three_walls.advice.unknown_settings import list_missing_settings
from three_walls.advice.verdict_rows import Culprit
from three_walls.advice.without_culprit import CULPRIT_RULE
from three_walls.lib.report_warning import SETTINGS_UNKNOWN
from three_walls.lib.text import (
    UNKNOWN,
    capitalize,
    count_of,
    format_count,
    format_ms,
    format_ms_range,
    format_name,
    format_share,
    join_words,
    keep_sentences,
    plural,
)
from three_walls.megatron.settings.setting_sources import CONFIG_FILE
from three_walls.report.charts import GROUP_COLOURS, WAIT_COLOUR
from three_walls.report.formats import format_gain, format_wall
from three_walls.report.overrides_file import slug
from three_walls.report.report import Report
from three_walls.report.section import Hero, Inline, Metric, Section, Terminal, Text, TopEdit
from three_walls.report.sections.moe import sum_parts
from three_walls.report.sections.plan import (
    describe_top_edit,
    explain_apart,
    list_unpriced,
    list_without_plan,
    needs_allow,
)
from three_walls.report.sections.steps import describe_log_and_progress, find_step_base, step_after
from three_walls.report.sections.walls import find_counterfactual, judged_step, recoverable_of, share_of_judged_step
from three_walls.tables.buckets import BUCKET_TITLES, Group, SubWall, Wall

MOST_EDITS = 3
"""So many entries of the plan are in the head."""
LONGEST_REASON, LONGEST_REMARK = 290, 200
"""Characters: three lines of a terminal, and two. The section on the walls has the whole reason."""
MOST_WEIGHTY = 2
"""So many findings that outweigh them."""
NO_EDIT = "No edit is recommended. What to do instead"
_MANY_EXPERT_KERNELS = 0.2
"""Of all kernels."""

_CULPRIT_TITLES = {
    "slow_compute": ("is slow", "are slow"),
    "launch_starved": ("launches late", "launch late"),
    "host_blocked": ("waits for its host", "wait for their hosts"),
}


def verdict(report: Report) -> Section:
    """The verdict with its reason: the rank to fix first, else the wall; then what to do first."""
    result = report.verdict
    title = name_bound(report)
    eyebrow = "What holds this run back"
    role = "abstained" if result.wall is None or result.abstained else result.wall.value
    text, remark = keep_sentences(result.reason, LONGEST_REASON), keep_sentences(result.plan_remark, LONGEST_REMARK)
    log = describe_log_and_progress(report.log) if report.log else ()
    if result.culprit is not None:
        is_alone = len(result.culprit.ranks) == 1
        bound = f"the run {'has' if role == 'abstained' else 'is'} {title[:1].lower()}{title[1:]}"
        without = f"Without {'its' if is_alone else 'their'} delay {bound}. {result.plan_remark}"
        remark = keep_sentences(without, LONGEST_REMARK)
        text = keep_sentences(_describe_culprit(report, result.culprit), LONGEST_REASON)
        eyebrow, role = "The rank that holds this run back", "culprit"
        named = result.culprit.named
        state = _CULPRIT_TITLES.get(result.culprit.cause, ("is late", "are late"))[0 if is_alone else 1]
        title = f"{capitalize(named)} {state}: fix {'it' if is_alone else 'them'} before tuning"
    entries = report.plan[MOST_EDITS:]
    edits, edits_title = _list_without_plan(report), NO_EDIT
    if report.plan:
        edits = tuple(describe_top_edit(report, step) for step in report.plan[:MOST_EDITS])
        edits += tuple(
            TopEdit(
                "", finding.title, f"rule-{slug(finding.rule)}", format_gain(finding.gain_ns), explain_apart(finding)
            )
            for finding in list_weighty(report)
        )
        edits_title = "What to change first"
    elif list_unpriced(report):
        edits_title = "There is no plan. What may help"
    hero = Hero(
        eyebrow=eyebrow,
        title=title,
        text=text,
        run=describe_run(report),
        remark=remark,
        notes=(*([remark] if remark else []), *describe_pauses(report), *log),
        metrics=tuple(_list_metrics(report)),
        shares=tuple(_sum_groups(report)),
        shares_of=f"the traced step ({format_ms(result.step_ns)})",
        role=role,
        step_line=describe_steps(report),
        edits=edits,
        edits_title=edits_title,
        more_edits=(Text(f"{count_entries(len(entries), 'more ')} in the plan", link="plan"),) if entries else (),
        limits=_list_limits(report),
    )
    return Section("verdict", "", (hero,), terminal=Terminal.ALWAYS, role=f"hero {hero.role}", on_paper=True)


def describe_pauses(report: Report) -> tuple[str, ...]:
    """Where the host pauses longest and what that costs, if it does."""
    pause = report.facts.get("longest_host_pause").value
    return (f"The host pauses: {pause}.",) if pause else ()


_LAUNCHERS = {"megatron_lm": "Megatron-LM", "bridge": "Megatron-Bridge", "megatron_bridge": "Megatron-Bridge"}


def describe_run(report: Report) -> str:
    """``rank0.sqlite and 3 more; 4 ranks of NVIDIA H200; Megatron-Bridge 0.6.2; with train.log``."""
    parts = []
    if report.inputs:
        more = f" and {format_count(len(report.inputs) - 1)} more" if len(report.inputs) > 1 else ""
        parts.append(f"{report.inputs[0].path_name}{more}")
    gpus = sorted({rank.gpu for rank in report.ranks if rank.gpu})
    if report.ranks:
        parts.append(f"{count_of(report.ranks_count, 'rank')}{f' on {gpus[0]}' if len(gpus) == 1 else ''}")
    launcher = _LAUNCHERS.get(report.config.dialect, "")
    if launcher:
        release = report.config.bridge_version if launcher == "Megatron-Bridge" else ""
        parts.append(f"{launcher} {release}".strip() if release else launcher)
    read = list(report.log.files) if report.log else []
    if any(value.is_stated_by(CONFIG_FILE) for value in report.config.values.values()):
        read.append("its saved configuration")
    if read:
        parts.append(f"with {join_words(read)}")
    return "; ".join(parts)


def name_bound(report: Report) -> str:
    """What limits the run, in the field's words: ``Host-bound: late kernel launches``."""
    result = report.verdict
    if result.wall is None or result.abstained:
        return format_wall(None)
    bound = _BOUNDS[result.wall, result.sub_wall if result.wall is Wall.COMPUTE_HOST else None]
    cause = _name_cause(report)
    return f"{bound}: {cause}" if cause else bound


_BOUNDS = {
    (Wall.MEMORY, None): "Memory-bound",
    (Wall.COMMUNICATION, None): "Communication-bound",
    (Wall.COMPUTE_HOST, None): "Compute- and host-bound",
    (Wall.COMPUTE_HOST, SubWall.COMPUTE): "Compute-bound",
    (Wall.COMPUTE_HOST, SubWall.HOST): "Host-bound",
}


def _name_cause(report: Report) -> str:
    """What takes most of the time that the wall is about."""
    result = report.verdict
    if result.wall is Wall.MEMORY:
        return "recompute and host copies"
    if result.sub_wall is SubWall.HOST:
        return "launches of sequential experts" if _are_experts_one_by_one(report) else "kernels are launched late"
    group = Group.COMMUNICATION if result.wall is Wall.COMMUNICATION else Group.COMPUTE
    rows = [row for row in report.budget if row.group == group.value and row.ns > 0]
    if not rows:
        return ""
    longest = max(rows, key=lambda row: (row.ns, row.bucket))
    title = BUCKET_TITLES.get(longest.bucket, longest.bucket)
    title = f"{title}s" if title.endswith("GEMM") else title
    return f"{'exposed' if group is Group.COMMUNICATION else 'mostly'} {title}"


def _are_experts_one_by_one(report: Report) -> bool:
    """Whether expert GEMMs that no setting groups are a good part of all kernels."""
    grouped = report.config.values.get("moe_grouped_gemm")
    if grouped is not None and grouped.value is True:
        return False
    calls = sum(part.calls for part in sum_parts(report.moe_layers) if part.part == "expert_gemm")
    return calls >= _MANY_EXPERT_KERNELS * (report.facts.number("kernel_count") or float("inf"))


def list_weighty(report: Report) -> list[Finding]:
    """What outweighs the plan: no setting fixes it, and it costs as much as one of the first entries gains; or it gains
    more than any entry, and changes what the model learns, so that it has to be allowed."""
    gains_ns = [step.gain_ns.likely or 0 for step in report.plan]
    least_ns = verdict_thresholds.SAME_GAIN_FRACTION * min(gains_ns[:MOST_EDITS], default=0)
    most_ns = max(gains_ns, default=0)
    found = [
        finding
        for finding in report.findings
        if (
            finding.outcome is Outcome.FOUND
            and (finding.gain_ns.likely or 0) > least_ns
            and finding.gain_ns.likely not in gains_ns  # the same replay: the entry fixes what it is about
            and finding.rule != CULPRIT_RULE
        )
        or (
            finding.applicability == CONVERGENCE_CHANGING
            and needs_allow(finding)
            and (finding.gain_ns.likely or 0) > most_ns
        )
    ]
    return sorted(found, key=lambda finding: (-(finding.gain_ns.likely or 0), finding.rule))[:MOST_WEIGHTY]


def _list_without_plan(report: Report) -> tuple[TopEdit, ...]:
    """What can be done without a plan: edits that no replay prices, findings that no setting fixes, and what would
    decide rules."""
    lines = [
        TopEdit("", each.title, f"rule-{slug(each.rule)}", format_gain(each.gain_ns), explain_apart(each))
        for each in list_without_plan(report)
    ]
    if (waiting := _count_waiting(report)) and not report.verdict.abstained:
        title = "Give the run's configuration: --config or --log"
        lines.insert(0, TopEdit("", title, "findings", "", f"decides up to {count_of(waiting, 'rule')}"))
    return tuple(lines[:MOST_EDITS])


def _count_waiting(report: Report) -> int:
    """Rules that wait for the settings of the run, as the warning counts them; 0 where a source states them."""
    if not any(warning.code == SETTINGS_UNKNOWN for warning in report.warnings):
        return 0
    return sum(bool(list_missing_settings(finding, report.facts)) for finding in report.findings)


def _list_limits(report: Report) -> tuple[Inline, ...]:
    """The warnings, and what was not captured, as links."""
    pieces: list[Inline] = []
    if report.warnings:
        counts = Counter(warning.code.replace("-", " ") for warning in report.warnings)
        names = ", ".join(f"{number} times {name}" if number > 1 else name for name, number in counts.items())
        pieces.append(Text(f"{count_of(len(report.warnings), 'warning')} ({names})", link="warnings"))
    undecided = sum(finding.outcome is Outcome.UNKNOWN for finding in report.findings)
    if undecided:
        waiting = _count_waiting(report)
        settings = f", {format_count(waiting)} of them of settings" if waiting else ""
        pieces.append(Text(f"{count_of(undecided, 'rule')} undecided for lack of facts{settings}", link="findings"))
    return tuple(pieces)


def _describe_culprit(report: Report, culprit: Culprit) -> str:
    """What the rank costs, why it is late, and with what evidence."""
    cost_ns, step_ns = culprit.cost_ns, culprit.cost_ns + culprit.step_without_it_ns
    first = report.plan[0] if report.plan else None
    is_replayed = first is not None and first.order == 0 and first.gain_ns.likely is not None
    share = format_share(cost_ns / step_ns if step_ns else None)
    evidence = f"{capitalize(culprit.evidence)}." if culprit.evidence else ""
    costs = "It costs" if len(culprit.ranks) == 1 else "They cost"
    return (
        f"{costs} the others {'about' if is_replayed else 'up to'} {format_ms(cost_ns)} of the {format_ms(step_ns)} "
        f"step ({share}; {format_name(culprit.cause)}). {evidence}".strip()
    )


def describe_steps(report: Report) -> str:
    """``Step 590 ms (by the log; traced: 640 ms); 48 of 64 steps complete, traced in 631-655 ms``."""
    step, base = report.step, find_step_base(report)
    if step.median_ns is None:
        return "; ".join(part for part in (f"Step: {UNKNOWN}", step.note) if part)
    now = format_ms(step.median_ns) if base is None else f"{format_ms(base.now_ns)} ({base.note})"
    spread = f", traced in {format_ms_range(step.min_ns, step.max_ns)}" if step.kept > 1 else ""
    return f"Step {now}; {count_complete(report)}{spread} (boundaries from {step.source})"


def count_complete(report: Report) -> str:
    """``48 of 64 steps complete``; of a long capture ``798 of 800 steps complete, 132 of them analyzed``."""
    step = report.step
    steps = count_of(step.kept + len(step.dropped), "step")
    complete = f"{format_count(step.kept + step.left_out)} of {steps} complete"
    return f"{complete}, {format_count(step.kept)} of them analyzed" if step.left_out else complete


def _list_metrics(report: Report) -> Iterator[Metric]:
    """The step now, after the plan, and without the wall: all of one base."""
    result, base = report.verdict, find_step_base(report)
    if base is None:
        yield Metric("Step now", UNKNOWN, "no complete step")
        return
    yield Metric("Step now", format_ms(base.now_ns), base.note)
    if report.plan:
        low_ns, likely_ns, high_ns = step_after(report.plan[-1])
        after = format_ms_range(low_ns, high_ns)
        entries = f"after {count_entries(len(report.plan))}"
        if likely_ns is None:
            yield Metric("After the plan", after, entries, "after")
        else:
            yield Metric("After the plan", format_ms(likely_ns), f"likely; {after} {entries}", "after")
    if result.culprit is not None and report.plan and report.plan[0].order == 0:
        low_ns, likely_ns, high_ns = step_after(report.plan[0])
        without = format_ms_range(low_ns, high_ns) if likely_ns is None else format_ms(likely_ns)
        yield Metric(f"Without the delay of {result.culprit.named}", without)
    if result.wall is not None and not result.abstained:
        removed = find_counterfactual(report, result.wall, result.sub_wall)
        if removed is not None and result.margin_fraction is None:
            pass  # a step of compute, in which no wall holds much
        elif removed is None:
            recoverable_ns = recoverable_of(report, result.wall, None)
            fraction = format_share(share_of_judged_step(report, recoverable_ns))
            yield Metric("Recoverable", f"up to {format_ms(recoverable_ns)}", f"{fraction} {judged_step(report)}")
        else:
            share = format_share(removed.saved_ns / max(1, removed.step_ns + removed.saved_ns))
            note = f"saves {share} {judged_step(report)}, by replay"
            yield Metric("Without this wall", format_ms(removed.step_ns), note)
    yield Metric("Captured", f"{count_complete(report)}, {count_of(report.ranks_count, 'rank')}", role="small")


def count_entries(number: int, what: str = "") -> str:
    """``1 entry``, ``3 more entries``."""
    return f"{format_count(number)} {what}{plural(number, 'entry', 'entries')}"


def _sum_groups(report: Report) -> Iterator[tuple[str, float, str]]:
    """Shares of the step by group: compute, transfer, waiting for other ranks, copy, graph, idle."""
    for group in Group:
        rows = [row for row in report.budget if row.group == group.value]
        if not sum(row.ns for row in rows):
            continue
        share = sum(row.fraction for row in rows)
        if group is not Group.COMMUNICATION:
            yield group.value, share, GROUP_COLOURS[group]
            continue
        waiting = min(share, max(0.0, report.facts.number("wait_exposed_fraction") or 0.0))
        is_bound = report.facts.get("ep_transfer_is_lower_bound").value is True
        at_least, at_most = (", at least", ", at most") if is_bound else ("", "")
        if share > waiting:
            name = f"transfer{at_least}" if waiting else group.value
            yield name, share - waiting, GROUP_COLOURS[group]
        if waiting:
            yield f"waiting for other ranks{at_most}", waiting, WAIT_COLOUR
