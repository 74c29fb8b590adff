"""``three-walls whatif``: the step after changes that the user asks about."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from three_walls.cli.analyze import show_progress
from three_walls.cli.options import run_options
from three_walls.cli.signals import loading
from three_walls.lib.errors import UsageError
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.text import UNKNOWN, format_ms, format_ms_range, format_share, show_control_characters
from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKETS
from three_walls.trace.run_request import RunRequest

if TYPE_CHECKING:
    from three_walls.advice.what_if import Question, WhatIf
    from three_walls.facts.fact_rows import Prediction

_BYTES_PER_GB = 1_000_000_000
LARGEST_FACTOR = 1_000.0
"""On a time: a larger one is a mistake."""


@click.command("whatif")
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A new value of a setting, by Megatron Core name or Bridge path (env_vars.NAME for a variable). Repeatable; "
    "the order does not matter.",
)
@click.option(
    "--scale",
    "scales",
    metavar="WHAT=FACTOR",
    multiple=True,
    help="Factor on the time of: host, nccl, communication, compute, gemms, copies, or a bucket of the budget "
    "(gemm, ep_all_to_all, ...). Repeatable.",
)
@click.option(
    "--drop",
    "dropped",
    metavar="REGEX",
    multiple=True,
    help="Leave out the kernels in whose name this is found, and their launches. Repeatable.",
)
@click.option("--network-gbs", metavar="N", type=float, help="Bandwidth of the network per GPU and direction, in GB/s.")
@click.option("--json", "is_json", is_flag=True, help="Print the answer as JSON.")
@run_options("rules")
def whatif_command(
    request: RunRequest,
    settings: tuple[str, ...],
    scales: tuple[str, ...],
    dropped: tuple[str, ...],
    network_gbs: float | None,
    is_json: bool,
) -> None:
    """Predict the step of TRACES after changes, all taken together.

    The captured step is replayed with the changes, without what the profiler added. Several options combine.

    \b
    Examples:
      three-walls whatif profiles/ --set overlap_moe_expert_parallel_comm=true
      three-walls whatif rank0.sqlite --scale nccl=0.5 --scale host=0.5
      three-walls whatif profiles/ --log train.log --network-gbs 100 --json
      three-walls whatif rank0.sqlite --drop 'softmax'

    \b
    Exit codes, also with --json:
      0  answered, or not predictable: because_unknown then gives the reason
      2  usage                        3  an input cannot be read or is no Nsight export
      4  no CUDA kernels in the traces
      5  the rule base has errors
    """
    with loading():
        from three_walls import pipeline
        from three_walls.advice.answer_what_if import answer
        from three_walls.report.terminal_report import open_console
    question = read_question(settings, scales, dropped, network_gbs)
    with show_progress() as progress:
        run = pipeline.replay_run(request, progress)
        progress("replaying the step with the changes")
        what_if = answer(question, run)
    if is_json:
        click.echo(json.dumps(to_json(what_if), indent=2))
        return
    screen = open_console()
    for line in describe_what_if(what_if):
        screen.print(line, markup=False, highlight=False, soft_wrap=True)


def read_question(
    settings: tuple[str, ...], scales: tuple[str, ...], dropped: tuple[str, ...], network_gbs: float | None
) -> Question:
    """The options as a question. Raises UsageError for one that cannot be read, and where none is given."""
    with loading():
        from three_walls.advice.what_if import Question
        from three_walls.megatron.settings.option_words import read_user_settings
    if not (settings or scales or dropped or network_gbs is not None):
        raise UsageError("whatif: expected a change, found none: give --set, --scale, --drop or --network-gbs")
    if network_gbs is not None and not (math.isfinite(network_gbs) and network_gbs > 0):
        raise UsageError(f"--network-gbs: expected a bandwidth above 0 GB/s, found {network_gbs:g}")
    _check_repeated(settings)
    config = read_user_settings(settings)
    values: dict[str, ConfigData] = {  # what a precision recipe sets follows from it
        f"config.{key}": setting.value for key, setting in config.values.items() if setting.is_stated
    }
    values |= {f"env.{name}": setting.value for name, setting in config.environment.items()}
    return Question(
        settings=values,
        scales=tuple(map(_read_scale, scales)),
        dropped_kernels=tuple(map(_read_expression, dropped)),
        network_bytes_per_s=None if network_gbs is None else network_gbs * _BYTES_PER_GB,
    )


def _check_repeated(settings: tuple[str, ...]) -> None:
    """Raises UsageError where one setting is given two values."""
    from three_walls.megatron.settings.option_words import read_user_settings

    asked: dict[str, ConfigData] = {}
    for word in settings:
        read = read_user_settings([word])
        stated = {key: setting.value for key, setting in read.values.items() if setting.is_stated}
        for key, value in (stated | {name: setting.value for name, setting in read.environment.items()}).items():
            if asked.setdefault(key, value) != value:
                raise UsageError(f"--set {key}: expected one value, found {asked[key]!r} and {value!r}")


def _read_scale(word: str) -> tuple[str, float]:
    name, equals, text = word.partition("=")
    try:
        factor = float(text) if equals else math.nan
    except ValueError:
        factor = math.nan
    if not 0 <= factor <= LARGEST_FACTOR:
        raise UsageError(f"--scale: expected WHAT=FACTOR with a factor from 0 to {LARGEST_FACTOR:g}, found {word!r}")
    return name.strip(), factor


def _read_expression(text: str) -> str:
    """``text``, once the engine that will search kernel names has read it."""
    with loading():
        import polars as pl
    try:
        if text:
            pl.Series([""]).str.contains(text)
            return text
        reason = "it is empty"
    except pl.exceptions.PolarsError as error:
        reason = " ".join(str(error).split())
    raise UsageError(f"--drop: expected a regular expression for kernel names, found {text!r} ({reason})")


def to_json(what_if: WhatIf) -> Mapping[str, object]:
    """What ``--json`` prints. A time that is not known is null; ``because_unknown`` is null where all are known."""
    step, after = what_if.step, what_if.after
    return {
        "step_ns": step.likely_ns if step else None,
        "after_ns": {name: getattr(after, f"{name}_ns") if after else None for name in ("low", "likely", "high")},
        "because_unknown": what_if.because_unknown or None,
        "budget_after": dict(what_if.budget_after),
        "refused": [{"constraint": note.name, "reason": note.text} for note in what_if.refused],
        "notes": list(what_if.notes),
    }


LIMIT_NAMES = {
    "host": "the host",
    "gap": "launch latency and gaps",
    "compute": "compute kernels",
    "communication": "communication",
    "copy": "copies",
    "graph": "CUDA graphs recorded whole",
}
"""What a critical path is made of, in words."""

_MOST_BUCKETS = 12
_NAME, _TIME = 36, 12


def describe_what_if(what_if: WhatIf) -> Iterator[str]:
    """The lines of ``what_if``: the step now and then, what limits it then, and the budget then."""
    yield f"Step now   {_describe_step(what_if.step)}{f' ({what_if.step_source})' if what_if.step else ''}"
    if what_if.after is None:
        yield f"Step then  {UNKNOWN}: {show_control_characters(what_if.because_unknown)}"
    else:
        yield f"Step then  {_describe_step(what_if.after)}{_describe_change(what_if.step, what_if.after)}"
    if what_if.limits_after:
        yield f"Limit      {_describe_limits(what_if.limits_after)}"
    for note in what_if.refused:
        yield f"Refused: {show_control_characters(note.text)}{f' [{note.source}]' if note.source else ''}"
    yield from (f"Note: {show_control_characters(note)}" for note in what_if.notes)
    if what_if.budget_after:
        yield ""
        yield f"{'Budget then':{_NAME}}{'now':>{_TIME}}{'then':>{_TIME}}{'share':>8}"
        yield from _list_budget(what_if)


def _describe_step(step: Prediction | None) -> str:
    if step is None:
        return UNKNOWN
    likely = format_ms(step.likely_ns)
    spread = format_ms_range(step.low_ns, step.high_ns)
    return f"{likely} (range {spread})" if "-" in spread else likely


def _describe_change(step: Prediction | None, after: Prediction) -> str:
    if step is None or not step.likely_ns:
        return ""
    saved_ns = step.likely_ns - after.likely_ns
    if saved_ns == 0:
        return ", no change"
    word = "shorter" if saved_ns > 0 else "longer"
    return f", {format_ms(abs(saved_ns))} {word} ({format_share(abs(saved_ns) / step.likely_ns)})"


def _describe_limits(limits: Mapping[str, int]) -> str:
    total_ns = sum(limits.values())
    in_order = sorted(limits.items(), key=lambda row: (-row[1], row[0]))
    parts = [f"{LIMIT_NAMES.get(name, name)} {format_share(ns / total_ns)}" for name, ns in in_order if ns]
    if not parts:
        return UNKNOWN
    others = f"; then {', '.join(parts[1:])}" if parts[1:] else ""
    return f"{parts[0]} of the critical path{others}"


def _list_budget(what_if: WhatIf) -> Iterator[str]:
    now, then = Counter(what_if.budget), Counter(what_if.budget_after)
    names = [bucket.name for bucket in BUCKETS if then[bucket.name] or now[bucket.name]]
    names.sort(key=lambda name: (-then[name], -now[name]))
    rows = [(BUCKET_BY_NAME[name].title, now[name], then[name]) for name in names[:_MOST_BUCKETS]]
    if rest := names[_MOST_BUCKETS:]:
        rows.append((f"{len(rest)} more", sum(now[name] for name in rest), sum(then[name] for name in rest)))
    for title, now_ns, then_ns in rows:
        share = format_share(then_ns / then.total()) if then.total() else UNKNOWN
        yield f"  {title:{_NAME - 2}}{format_ms(now_ns):>{_TIME}}{format_ms(then_ns):>{_TIME}}{share:>8}"
