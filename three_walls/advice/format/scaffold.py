"""A new rule with its cases: two files that load and run, and fail their test until every TODO in them is filled in."""

from __future__ import annotations

import re
from pathlib import Path

from three_walls.advice.format.load_rules import cases_file
from three_walls.advice.format.rule import folder_of
from three_walls.lib.errors import UsageError
from three_walls.tables.buckets import SubWall, Wall

_TODO = "TODO"

_SYMPTOMS = {
    Wall.MEMORY: ("memory_peak_fraction", "0.90", "recompute_ns"),
    Wall.COMMUNICATION: ("ep_transfer_exposed_fraction", "0.10", "ep_transfer_exposed_ns"),
    Wall.COMPUTE_HOST: ("launch_starved_recoverable_fraction", "0.10", "launch_starved_recoverable_ns"),
}
"""Per wall: a fact that shows the symptom, its threshold, and a time that an edit may save."""

_RULE = """\
# Fill in every marked line and replace the example on it. `three-walls rules test` lists the lines that are left.
# rules/README.md explains the fields.
id: {id}
wall: {wall}
{sub_wall}title: TODO what to do, as a command of at most ten words
applicability: execution-only  # or convergence-changing, benchmark-only
docs:
  what_it_looks_for: >
    TODO the configuration and the symptom, with its threshold.
  why_it_matters: >
    TODO what happens on the GPU or the host, and what the edits change about it.
  how_to_verify: >
    TODO what the next profile and the log show if the edits worked.
applies_to:  # which runs the rule is about; [] stands for every run
  - config.num_moe_experts >= 2  # TODO
when:  # the symptom; `three-walls facts` lists the facts
  - {fact} >= {threshold}  # TODO
requires:  # what the edits need; a rule that needs nothing has no such section
  no_cpu_offloading:  # TODO
    check: config.cpu_offloading is not True
    reason: TODO why, such as "CUDA graphs do not support CPU offloading"
    source: guide:MoE Training Optimization Workflow  # TODO where that is stated, by a prefix of sources.yaml
lever: {lever}  # what the edits change; a plan has one rule of a lever, and those that continue it
edits:
  - set: moe_permute_fusion  # TODO a key of tables/config-keys.yaml
    to: true
    reason: TODO why this value
    source: guide:MoE Training Optimization Workflow  # TODO
gain:  # what the edits change in a replay stands in effects/
  at_most:  # the upper bound; edits that save memory have frees_memory: true instead
    - {{time: {time}}}  # TODO a time of the step; with share, a part of it
  explanation: TODO why no more can be gained.
evidence:
  for:
    - claim: TODO a measurement or statement in favor of the edits
      source: guide:MoE Training Optimization Workflow  # TODO
  against: []  # TODO what contradicts it; the reader sees both
"""

_CASES = """\
# `three-walls rules test` derives cases from the rule: next to each limit, for each missing fact, for each blocker and
# for a small gain. Write three to six cases that show what the rule is for.
rule: {id}
workload:  # TODO facts of a run for which the rule is recommended
  step_ns: 1_000_000_000
  config.num_moe_experts: 64
  config.cpu_offloading: false
  config.moe_permute_fusion: false
  {fact}: {given}
  {time}: 200_000_000
cases:
  TODO is recommended for the run it is meant for:
    expect:
      outcome: recommended
      edits: {{moe_permute_fusion: true}}
      gain_at_most_ns: 200_000_000
"""


def write_scaffold(identifier: str, wall: Wall, sub_wall: SubWall | None, directory: Path) -> tuple[Path, Path]:
    """Writes a rule and its cases below ``directory``; UsageError for a malformed id or one that exists there."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", identifier):
        raise UsageError(f"expected an id like larger-micro-batch, found {identifier!r}")
    if wall is Wall.COMPUTE_HOST and sub_wall is None:
        raise UsageError("a rule of wall compute_host needs its half: add --sub-wall compute or --sub-wall host")
    if wall is not Wall.COMPUTE_HOST and sub_wall is not None:
        raise UsageError(f"--sub-wall is for --wall compute_host: leave it out for --wall {wall}")
    rule_file = directory / folder_of(wall) / f"{identifier}.yaml"
    if rule_file.exists():
        raise UsageError(f"{rule_file} exists: choose another id, or edit that file")
    fact, threshold, time = _SYMPTOMS[wall]
    values = {
        "id": identifier,
        "wall": wall.value,
        "sub_wall": f"sub_wall: {sub_wall}\n" if sub_wall else "",
        "fact": fact,
        "threshold": threshold,
        "time": time,
        "lever": identifier.replace("-", "_"),
        "given": f"{min(1.0, float(threshold) + 0.05):.2f}",
    }
    rule_file.parent.mkdir(parents=True, exist_ok=True)
    rule_file.write_text(_RULE.format(**values), encoding="utf-8")
    cases_file(rule_file).write_text(_CASES.format(**values), encoding="utf-8")
    return rule_file, cases_file(rule_file)


def list_todos(path: Path) -> list[str]:
    """The lines of a file that still contain TODO, each with its place: ``my-rule.yaml:5: title: TODO ...``."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
    return [f"{path.name}:{number}: {line.strip()}" for number, line in lines if _TODO in line]
