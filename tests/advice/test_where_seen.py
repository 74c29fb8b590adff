"""Where an entry of the plan gains from: every time is one of a rule, every place a bucket or a cause."""

from __future__ import annotations

from dataclasses import replace

from tests.report.sample_report import sample_report
from three_walls.advice.format.load_rules import load_rule_base
from three_walls.advice.plan.locate import SEEN_IN, name_places
from three_walls.facts.sheet import DEFINITIONS
from three_walls.step.compute_gaps import Cause
from three_walls.tables.buckets import BUCKET_BY_NAME

RULES = load_rule_base(DEFINITIONS).rules


def test_every_place_is_a_bucket_or_a_cause_and_every_time_one_of_a_rule() -> None:
    times = {share.time for rule in RULES for share in rule.gain.at_most}
    assert set(SEEN_IN) <= times
    assert {place for places in SEEN_IN.values() for place in places} <= {*BUCKET_BY_NAME, *map(str, Cause)}


def test_an_entry_has_the_places_of_its_times_and_one_without_such_a_time_has_none() -> None:
    first = sample_report().plan[0]
    entries = [replace(first, rule=rule) for rule in ("ep-overlap", "late-rank", "no-such-rule")]
    assert [step.seen_in for step in name_places(entries, RULES)] == [("ep_all_to_all", "ep_dispatch_combine"), (), ()]
