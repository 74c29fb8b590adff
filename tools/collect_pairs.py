"""From what benchmarks/gpu measured to entries of measured_pairs.yaml: bases, predictions, pairs, in this order.

    python -m tools.collect_pairs bases OUT --into benchmarks/traces           # after --only capture
    python -m tools.collect_pairs reduce benchmarks/traces/BASE ...            # what bases does with each, too
    python -m tools.collect_pairs predict CASE.yaml ... --bases benchmarks/traces --out predictions.yaml
    python -m tools.collect_pairs pairs OUT --predictions predictions.yaml --machine "8 x H200 of one host, ..."

``bases`` scrubs each captured case of OUT, the folder of run_cases.py, and says how far it is understood: the
unclassified share and the replay error. ``reduce`` cuts the captures of a base to as many steps as fit into
MOST_BASE_BYTES, around the one that a report is about: predictions rest on that step. What takes more all the same
becomes packed tables, where only the order of rows is another (pack_tables.py). ``predict`` asks for every edit of a
case by its settings, as ``whatif`` does, and notes the time. ``pairs`` prints groups, edits, and rows for
docs/measured-pairs.md. An edit is set aside where its prediction is older than the first iteration of its first run.
The clocks are those of two machines: compare them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import combinations_with_replacement
from math import sqrt
from pathlib import Path
from statistics import mean, median, median_low, stdev
from tempfile import TemporaryDirectory
from typing import Any

import click
import yaml

from three_walls.advice.without_culprit import CULPRIT_RULE
from three_walls.capture.scrub.scrub_export import scrub
from three_walls.lib.errors import UsageError
from three_walls.pipeline import analyze
from three_walls.report.report import LiveReport
from three_walls.trace.spans import Span
from three_walls.trace.table_directory import list_tables
from three_walls.trace.trace_files import find_traces, plain_name
from tools.accuracy import MeasuredEdit, compare, find_settings, load_base
from tools.pack_tables import pack_tables

ROOT = Path(__file__).resolve().parent.parent
KIT = ROOT / "benchmarks" / "gpu"
sys.path.insert(0, str(KIT))

from case import Case, Edit, read_case  # noqa: E402 - scripts beside the package
from run_cases import CAPTURED  # noqa: E402

ITERATION = re.compile(r"iteration\s+(\d+)/.*elapsed time per iteration")
MEMORY = re.compile(r"\[Rank 0\] \(after (\d+) iterations\)")
DATE = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)[.\d]*\] iteration")
MOST_BASE_BYTES = 1_500_000
"""Of the captures of a base: every clone of the repository takes all of them."""
MOST_STEP_DIFFERENCE_FRACTION = 0.005
"""By which the unprofiled step of some steps may differ from that of all."""
LEAST_NOISE_MS = 1
LEAST_RUNS = 3
"""Of an edit, for the standard error of its gain to say more than what its runs differ by."""


@click.group(help=__doc__)
def cli() -> None:
    pass


@cli.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--into", type=click.Path(path_type=Path), required=True)
def bases(out: Path, into: Path) -> None:
    """Scrub the captures of OUT into folders that can be shared, and say how far each is understood."""
    for config in sorted(out.glob("*/run_config.yaml")):
        make_base(config.parent, into / config.parent.name)
        click.echo(reduce_base(into / config.parent.name))
        labels = out / f"{config.parent.name}.labels.yaml"
        if labels.exists():
            shutil.copy(labels, into)
        click.echo(f"{config.parent.name}: {describe_base(into / config.parent.name)}")


def make_base(captured: Path, base: Path) -> None:
    """Write the scrubbed ranks, the log's lines that count, and the configuration without paths."""
    base.mkdir(parents=True, exist_ok=True)
    exports = sorted(captured.glob("rank*.sqlite")) or sorted(captured.glob("rank*.nsys-rep"))
    for export in exports:
        target = base / f"{export.stem}.sqlite.xz"
        subprocess.run([sys.executable, "-m", "three_walls", "scrub", "--force", export, target], check=True)
    logs = sorted(captured.glob("99-base.rank*.log"), key=_rank_of)
    (base / "train.log").write_text(shorten_log(*(logs[end].read_text(errors="replace") for end in (-1, 0))))
    config = (captured / "run_config.yaml").read_text()
    (base / "run_config.yaml").write_text(re.sub(r"(?m): /\S+$", ": /PATH", config))


@cli.command("reduce")
@click.argument("paths", metavar="BASE...", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
def reduce_bases(paths: Sequence[Path]) -> None:
    """Cut the captures of each BASE, a folder or a file, to the steps that fit, or pack their tables, in place."""
    for path in paths:
        click.echo(reduce_base(path))


def reduce_base(path: Path) -> str:
    """Cuts the captures at ``path``, a folder or a file, to as many steps as fit; says which, and their size.

    Packs the tables of a folder's captures where that is not enough.
    """
    if any(capture.is_dir() for capture in _list_captures(path)):
        return f"{path.name}: as it was, its tables are packed"
    said = _cut_to_steps(path)
    if measure_bytes(path) <= MOST_BASE_BYTES or not path.is_dir():
        return said
    for capture in _list_captures(path):
        pack_tables(capture, capture.with_name(f"{Path(plain_name(capture)).stem}_arwdir"))
        capture.unlink()
    return f"{said}; with packed tables {measure_bytes(path):,} bytes"


def _cut_to_steps(path: Path) -> str:
    report = _analyze(path)
    if report.timeline is None:
        return f"{path.name}: as it was, no step could be kept"
    before_bytes = measure_bytes(path)
    runs = list_runs(report)
    most_steps = MOST_BASE_BYTES * (runs[0][1] - runs[0][0] + 1) // before_bytes + 1
    for first, last in (run for run in runs if run[1] - run[0] < most_steps):
        with TemporaryDirectory(dir=path.parent) as folder:
            shorter = Path(folder) / path.name
            scrub(path, shorter, steps=(first, last + 1))
            if measure_bytes(shorter) > MOST_BASE_BYTES and last > first:
                continue
            if found := find_difference(report, _analyze(shorter, beside=path)):
                return f"{path.name}: as it was: with steps {first}-{last} alone {found}"
            for capture in _list_captures(shorter):
                shutil.copy(capture, path / capture.name if path.is_dir() else path)
        return f"{path.name}: steps {first}-{last}, {measure_bytes(path):,} bytes, from {before_bytes:,}"
    raise AssertionError("a run of one step is always tried")


def list_runs(report: LiveReport) -> list[Span]:
    """First and last of consecutive steps whose median on the rank of the report's step is that step, the most first.

    Of as many steps, those come first whose medians on the other ranks are nearest to the medians of all.
    """
    assert report.timeline is not None
    of_ranks = {
        rank.rank: {step.index: step.end_ns - step.start_ns for step in rank.steps if step.kept}
        for rank in report.ranks
    }
    common = set.intersection(*map(set, of_ranks.values()))
    runs = []
    for first, last in combinations_with_replacement(sorted(common), 2):
        steps = range(first, last + 1)
        if common.issuperset(steps):
            medians = {rank: median_low(lengths[step] for step in steps) for rank, lengths in of_ranks.items()}
            if medians[report.timeline.rank] == of_ranks[report.timeline.rank][report.timeline.step]:
                off_ns = sum(abs(medians[rank] - median_low(ns.values())) for rank, ns in of_ranks.items())
                runs.append((-len(steps), off_ns, first, last))
    return [(first, last) for _, _, first, last in sorted(runs)]


def find_difference(whole: LiveReport, shorter: LiveReport) -> str:
    """What the report of some steps judges otherwise than that of all of them; empty where nothing."""
    was, now = (f"{report.verdict.wall} {report.verdict.sub_wall}" for report in (whole, shorter))
    was_late, now_late = map(_describe_late, (whole, shorter))
    was_ns, now_ns = (report.facts.number("predicted_unprofiled_step_ns") or 0 for report in (whole, shorter))
    if was != now:
        return f"the wall is {now}, not {was}"
    if was_late != now_late:
        return f"{now_late}, not: {was_late}"
    is_near = abs(now_ns - was_ns) <= MOST_STEP_DIFFERENCE_FRACTION * was_ns
    return "" if is_near else f"the unprofiled step takes {now_ns / 1e6:.1f} ms, not {was_ns / 1e6:.1f}"


def _describe_late(report: LiveReport) -> str:
    culprit = report.verdict.culprit
    found = [f"rank {culprit.rank} holds the run up"] if culprit else []
    found += [f"rank {one.rank} is late: {one.cause}" for one in report.stragglers]
    return "; ".join(found) or "no rank is late"


def _analyze(path: Path, beside: Path | None = None) -> LiveReport:
    """The report of ``path``, by the logs and the configuration in the folder ``beside``, or in its own."""
    logs, config = find_settings(beside or path)
    return analyze(path, logs=logs, config=config)


def measure_bytes(path: Path) -> int:
    """Bytes of all captures at ``path``."""
    captures = _list_captures(path)
    files = (file for capture in captures for file in (list_tables(capture) if capture.is_dir() else [capture]))
    return sum(file.stat().st_size for file in files)


def _list_captures(path: Path) -> list[Path]:
    return find_traces([path])


def _rank_of(log: Path) -> int:
    return int(log.name.split(".rank")[1].split(".")[0])


def shorten_log(last: str, first: str) -> str:
    """The iteration lines of the last rank's log, each with the memory line of the first's."""
    iterations = {int(found[1]): line for line in last.splitlines() if (found := ITERATION.search(line))}
    memory = {int(found[1]): line for line in first.splitlines() if (found := MEMORY.match(line))}
    lines = (line for number in sorted(iterations) for line in (iterations[number], memory.get(number)) if line)
    return "".join(f"{line}\n" for line in lines)


def describe_base(path: Path) -> str:
    facts = load_base(path).facts
    shown = []
    for title, name in (("unclassified", "unclassified_fraction"), ("replay error", "replay_error_fraction")):
        value = facts.number(name)
        shown.append(f"{title} {'unknown' if value is None else f'{value:.2%}'}")
    return ", ".join(shown)


@cli.command()
@click.argument("cases", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--bases", "folder", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--out", type=click.Path(path_type=Path), required=True)
def predict(cases: Sequence[Path], folder: Path, out: Path) -> None:
    """Predict every edit of the files CASES. Run it before the edits run; a file that exists is not replaced."""
    if out.exists():
        raise click.UsageError(f"{out} exists: a prediction is made once")
    found = {case.stem: predict_case(read_case(case), folder / case.stem) for case in cases}
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    head = {"made_at": f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S}", "commit": commit.stdout.strip()}
    out.write_text(yaml.safe_dump({**head, "cases": found}, sort_keys=False, default_flow_style=None, width=1000))
    click.echo(out.read_text())


def predict_case(case: Case, base: Path) -> dict[str, Any]:
    """For each edit how it was asked for, and the gain in percent of the step; or why there is none."""
    found: dict[str, Any] = {}
    for edit in case.edits:
        how = ask(edit)
        question = MeasuredEdit(
            name=edit.name, base=case.name, settings=tuple(how.get("set", ())), heals="heals" in how,
            base_ms=1, edited_ms=1, noise_ms=0, same_run=True, is_set_aside=True,
        )  # fmt: skip
        try:
            answer = compare(question, load_base(base)) if how else "no setting stands for this edit"
        except UsageError as error:  # a setting that three-walls does not know
            answer = str(error)
        if isinstance(answer, str):
            found[edit.name] = {"not_predicted": answer}
        else:
            gains = (answer.printed.low, answer.printed.likely, answer.printed.high)
            found[edit.name] = how | {"gain_percent": [round(100 * gain, 2) for gain in gains]}
    return found


def ask(edit: Edit) -> dict[str, Any]:
    """The settings of the edit, as `three-walls whatif --set` takes them; empty where they are not what it changes.

    An edit that takes a fault from the slow rank heals it.
    """
    if edit.faults is not None:
        return {"heals": True} if edit.rule == CULPRIT_RULE else {}
    stated = (override.lstrip("+").split("=", 1) for override in edit.overrides)
    settings = [f"{path.split('.')[-1]}={value}" for path, value in stated]
    settings += [f"env_vars.{name}={value}" for name, value in edit.environment.items()]
    return {"set": list(dict.fromkeys(settings))} if settings else {}


@dataclass(frozen=True, slots=True)
class Pair:
    """An edit of a case, over all of its runs. Times in milliseconds."""

    name: str
    base_ms: float
    edited_ms: float
    noise_ms: float
    runs: int
    """Of the edit."""
    began_at: str | None
    """When its first run wrote its first iteration, by the clock of that machine."""


@cli.command()
@click.argument("out", type=click.Path(path_type=Path, exists=True))
@click.option("--predictions", type=click.Path(path_type=Path, exists=True), required=True)
@click.option("--machine", required=True, help="what ran: GPUs, releases")
def pairs(out: Path, predictions: Path, machine: str) -> None:
    """Print entries for measured_pairs.yaml, and rows for docs/measured-pairs.md, from each runs.jsonl below OUT."""
    made = yaml.safe_load(predictions.read_text())
    groups, edits, table = [], [], ["| pair | run | ms a step |", "|---|---|---|"]
    for lines in sorted(out.glob("**/runs.jsonl")):
        runs = [run for run in map(json.loads, lines.read_text().splitlines()) if run["number"] != CAPTURED]
        for run in runs:
            if run["median_ms"] is None:
                click.echo(f"# {run['case']} {run['edit'] or 'base'} failed: {run['error']}")
        found = pair_runs(runs, lines.parent)
        if found:
            case = runs[0]["case"]
            groups.append(describe_group(case, machine, runs, found))
            edits += [each for pair in found if (each := describe_edit(case, pair, made))]
            rows = [(run["run"], run["step_ms"]) for run in groups[-1]["runs"]]
            table += [f"|{'' if row else f' `{case}`'} | {run} | {ms} |" for row, (run, ms) in enumerate(rows)]
    click.echo(yaml.safe_dump({"groups": groups, "edits": edits}, sort_keys=False, default_flow_style=None, width=1000))
    click.echo("\n".join(table))


def pair_runs(runs: Sequence[Mapping[str, Any]], folder: Path) -> list[Pair]:
    """Each edit beside the bases before and after it. Runs that failed count for nothing."""
    ran = [run for run in runs if run["median_ms"] is not None]
    by_edit: dict[str, list[tuple[float, list[float], float]]] = {}
    for number, run in enumerate(ran):
        before = [other for other in ran[:number] if other["edit"] is None][-1:]
        after = [other for other in ran[number + 1 :] if other["edit"] is None][:1]
        if run["edit"] is not None and before + after:
            spread = max((high - low) / 2 for low, high in (each["quartiles_ms"] for each in (*before, run, *after)))
            beside = [each["median_ms"] for each in (*before, *after)]
            by_edit.setdefault(run["edit"], []).append((run["median_ms"], beside, spread))
    found = []
    for name, several in by_edit.items():
        base_ms = mean(mean(beside) for _, beside, _ in several)
        gains = [1 - edited / mean(beside) for edited, beside, _ in several]
        noise = mean(max((max(beside) - min(beside)) / 2, spread) for _, beside, spread in several)
        if len(gains) >= LEAST_RUNS:
            noise = 2 * stdev(gains) / sqrt(len(gains)) * base_ms  # twice the standard error of their mean
        else:
            noise = max(noise, (max(gains) - min(gains)) / 2 * base_ms)
        noise = max(noise, LEAST_NOISE_MS)
        edited_ms = mean(edited for edited, _, _ in several)
        number = next(run["number"] for run in ran if run["edit"] == name)
        began_at = find_start(folder, f"{number:02d}-{name}")
        found.append(Pair(name, round(base_ms, 1), round(edited_ms, 1), round(noise), len(gains), began_at))
    return found


def find_start(folder: Path, run: str) -> str | None:
    """The date of the first iteration line in the logs of a run."""
    dates = (DATE.search(log.read_text(errors="replace")) for log in sorted(folder.glob(f"{run}.rank*.log")))
    return min((found[1] for found in dates if found), default=None)


def describe_group(case: str, machine: str, runs: Sequence[Mapping[str, Any]], found: Sequence[Pair]) -> dict[str, Any]:
    bases_ms = [round(run["median_ms"]) for run in runs if run["edit"] is None and run["median_ms"] is not None]
    title = f"base ({len(bases_ms)} runs: {', '.join(map(str, bases_ms))})" if len(bases_ms) > 1 else "base"
    return {
        "name": case,
        **({"base_runs_ms": bases_ms} if len(bases_ms) > 1 else {}),
        "machine": f"{machine}, benchmarks/gpu/cases/{case}.yaml",
        "runs": [
            {"run": title, "step_ms": round(median(bases_ms))},
            *({"run": pair.name.replace("-", " "), "step_ms": round(pair.edited_ms)} for pair in found),
        ],
    }


def describe_edit(case: str, pair: Pair, made: Mapping[str, Any]) -> dict[str, Any] | None:
    """An entry of ``edits``; None where nothing was predicted."""
    predicted = made["cases"].get(case, {}).get(pair.name, {"not_predicted": ""})
    if "not_predicted" in predicted:
        return None
    return {
        "name": f"{pair.name.replace('-', ' ')}, {case.replace('-', ' ')}",
        "group": case,
        "base": case,
        **{key: predicted[key] for key in ("set", "heals") if key in predicted},
        "base_ms": pair.base_ms,
        "edited_ms": pair.edited_ms,
        "noise_ms": pair.noise_ms,
        **({"runs": pair.runs} if pair.runs > 1 else {}),
        "same_run": False,
        **({"set_aside": True} if pair.began_at and made["made_at"] < pair.began_at else {}),
    }


if __name__ == "__main__":
    cli()
