"""A new rule with its cases: two files that load and run, and fail their test until every TODO in them is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

from three_walls.model.buckets import SubWall, Wall
from three_walls.model.errors import UsageError
from three_walls.model.rule import Rule
from three_walls.rules.load import cases_file, folder_of

TODO = "TODO"

_SYMPTOMS = {
    Wall.MEMORY: ("memory_peak_fraction", "0.90", "recompute_ns"),
    Wall.COMMUNICATION: ("ep_transfer_exposed_fraction", "0.10", "ep_transfer_exposed_ns"),
    Wall.COMPUTE_HOST: ("launch_starved_recoverable_fraction", "0.10", "launch_starved_recoverable_ns"),
}
"""Per wall: a fact that shows the symptom, its threshold, and the time that an edit may save."""

_RULE = """\
id: {id}
wall: {wall}
{sub_wall}title: TODO what the reader is to do, as a command of at most ten words
applicability: execution-only  # or convergence-changing, benchmark-only
docs:
  what_it_looks_for: >
    TODO the configuration and the symptom, with its threshold.
  why_it_matters: >
    TODO what happens on the GPU or the host, and why the edit changes it.
  how_to_verify: >
    TODO what the next trace and the log must show if it worked.
applies_to:  # else the rule is not applicable; write {{}} for every run
  config.num_moe_experts: {{at_least: 2}}
when:  # else the rule is not needed (three-walls facts lists the facts)
  {fact}: {{at_least: {threshold}}}
requires:  # else the rule is blocked; leave it out if nothing can block the edits
  no_cpu_offloading:
    check: {{config.cpu_offloading: {{not_equals: true}}}}
    reason: TODO why the edits are not allowed without it
    source: guide:MoE Training Optimization Workflow  # TODO where you read it: a prefix of sources.yaml and a place
lever: {lever}  # at most one rule of a lever enters a plan
edits:
  - set: moe_permute_fusion  # TODO the key to set; its name stands in tables/config-keys.yaml
    to: true
    reason: TODO why this value
    source: guide:MoE Training Optimization Workflow
gain:
  basis: upper_bound  # or measured, modelled, range, frees_memory, none
  terms:
    - {{pool: {pool}, high: 1.0}}
  explanation: TODO where these numbers come from, and what in them is an estimate.
evidence:
  for:
    - claim: TODO a measurement or statement that speaks for the edits
      source: guide:MoE Training Optimization Workflow
  against: []  # keep what speaks against the edits: it is shown to the reader
"""

_CASES = """\
rule: {id}
# The runner derives the cases at each limit, for each missing fact and for each blocker from this workload. Write the
# three to six cases that tell what the rule is for.
workload:
  step_ns: 1_000_000_000
  config.num_moe_experts: 64
  config.cpu_offloading: false
  config.moe_permute_fusion: false
  {fact}: {given}
  {pool}: 200_000_000
cases:
  TODO is recommended for the run it is meant for:
    expect:
      outcome: recommended
      edits: {{moe_permute_fusion: true}}
      gain_ns: {{low: 0, likely: null, high: 200_000_000}}
"""


def write_scaffold(identifier: str, wall: Wall, sub_wall: SubWall | None, directory: Path) -> tuple[Path, Path]:
    """Writes a rule and its cases below ``directory``; UsageError for an id that is none, or that is there already."""
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", identifier):
        raise UsageError(f"expected an id like larger-micro-batch, found {identifier!r}")
    if (sub_wall is not None) != (wall is Wall.COMPUTE_HOST):
        raise UsageError("--sub-wall compute or host goes with --wall compute_host, and with no other wall")
    rule_file = directory / folder_of(wall) / f"{identifier}.yaml"
    if rule_file.exists():
        raise UsageError(f"{rule_file} exists already")
    fact, threshold, pool = _SYMPTOMS[wall]
    words = {
        "id": identifier,
        "wall": wall.value,
        "sub_wall": f"sub_wall: {sub_wall}\n" if sub_wall else "",
        "fact": fact,
        "threshold": threshold,
        "pool": pool,
        "lever": identifier.replace("-", "_"),
        "given": f"{min(1.0, float(threshold) + 0.05):.2f}",
    }
    rule_file.parent.mkdir(parents=True, exist_ok=True)
    rule_file.write_text(_RULE.format(**words), encoding="utf-8")
    cases_file(rule_file).write_text(_CASES.format(**words), encoding="utf-8")
    return rule_file, cases_file(rule_file)


def unfilled(rule: Rule) -> list[str]:
    """The parts of a rule that still hold the scaffold's TODO, by their names in the rule."""
    return list(dict.fromkeys(_unfilled(rule, "")))


def _unfilled(value: object, name: str) -> Iterator[str]:
    if isinstance(value, str) and TODO in value:
        yield name
    elif isinstance(value, tuple):
        for part in value:
            yield from _unfilled(part, name)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _unfilled(getattr(value, field.name), field.name if not name else f"{name}.{field.name}")
