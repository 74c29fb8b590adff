"""The verdict: which wall limits the run, or why that cannot be decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from three_walls.advice import verdict_thresholds
from three_walls.advice.counterfactuals import (
    COMMUNICATION,
    COMPUTE,
    HOST,
    MEMORY,
    STRAGGLER,
    heal,
    replay_without_walls,
)
from three_walls.advice.judge import lacking_signs
from three_walls.advice.plan.replays import Replays
from three_walls.advice.upper_bound import find_unpaused, minimum_gain_ns
from three_walls.advice.verdict_rows import REMOVED, Counterfactual, Culprit, Verdict
from three_walls.advice.without_culprit import CULPRIT_COST, without_culprit
from three_walls.advice.wording import list_labels
from three_walls.lib.fact import FactSheet
from three_walls.lib.text import capitalize, format_share, in_ms, in_percent
from three_walls.replay.transformation import Predictor
from three_walls.step.step_rows import MINIMUM_SHARED_GPU_SPREAD_RATIO, Straggler
from three_walls.tables.buckets import SubWall, Wall

_FACTS = {
    "memory": "memory_recoverable_ns",
    "communication": "communication_recoverable_ns",
    "compute_host.compute": "compute_recoverable_ns",
    "compute_host.host": "host_recoverable_ns",
}
_WALLS = {
    MEMORY: (Wall.MEMORY, None),
    COMMUNICATION: (Wall.COMMUNICATION, None),
    COMPUTE: (Wall.COMPUTE_HOST, SubWall.COMPUTE),
    HOST: (Wall.COMPUTE_HOST, SubWall.HOST),
}
_REMOVED = {**REMOVED, Wall.COMPUTE_HOST.value: f"{REMOVED[HOST]} and {REMOVED[COMPUTE]}"}
"""Wall -> what its removal takes out of the step, as it reads after "without"."""
_NOUNS = {"host": "the host"}
"""Parts of the third wall whose name is not their noun."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A wall with the time that edits against it can save.

    ``parts``: the parts of the wall that have some of it, by name: one or two for the third wall, one for the others.
    """

    wall: Wall
    sub_wall: SubWall | None
    ns: int
    parts: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        """``compute_host.host``."""
        return self.wall.value if self.sub_wall is None else f"{self.wall.value}.{self.sub_wall.value}"

    @property
    def changes(self) -> str:
        """``compute and host changes``."""
        return f"{' and '.join(name for name, _ in self.parts)} changes"

    @property
    def noun(self) -> str:
        """``compute and the host together``."""
        nouns = [_NOUNS.get(name, name) for name, _ in self.parts]
        return " and ".join(nouns) + (" together" if len(nouns) > 1 else "")


def decide_verdict(
    facts: FactSheet,
    stragglers: Sequence[Straggler] = (),
    predictor: Predictor | None = None,
) -> Verdict:
    """The wall with the most recoverable time; abstains if facts are missing or misleading, or walls too close.

    With a rank to fix first the wall is judged for the step without its delay. ``stragglers`` hold the evidence.
    Where the ``predictor`` is trusted, the wall is the one whose removal shortens the replayed step most, and a late
    rank is to be fixed first only if it :func:`holds the run back <_holds_back>`.
    """
    culprit = _find_culprit(facts, stragglers)
    replays = Replays.of(predictor, (), facts)
    if replays is None:
        now_ns = _whole(facts, "unprofiled_step_ns") or _whole(facts, "step_ns") or 0
        verdict = _judge(facts, culprit and _fit(culprit, now_ns), None)
        return replace(verdict, no_replay_reason=predictor.missing_reason if predictor else "")
    now_ns = replays.step().likely_ns
    if culprit is None or replays.predictor.explain(heal(culprit.ranks)):
        replayed = _replay(replays, without_culprit(facts) if culprit else facts)
        verdict = _judge(facts, culprit and _fit(culprit, now_ns), replayed)
        return replace(verdict, replayed_step_ns=now_ns, counterfactuals=replayed.without)
    healed_ns = replays.likely_ns((heal(culprit.ranks),))
    healed = Counterfactual((STRAGGLER,), healed_ns, now_ns - healed_ns)
    base = (heal(culprit.ranks),) if healed_ns < now_ns else ()
    replayed = _replay(replace(replays, base=base), without_culprit(facts))
    if _holds_back(healed, replayed):
        # One number everywhere: what the plan's first entry gains.
        if healed.saved_ns >= minimum_gain_ns(replays.unpaused_ns()):
            culprit = replace(culprit, cost_ns=healed.saved_ns, step_without_it_ns=healed_ns)
        else:
            culprit = _fit(culprit, now_ns)
        verdict = _judge(facts, culprit, replayed)
    else:
        replayed = _replay(replays, facts)
        verdict = _judge(facts, None, replayed)
        remark = f" {_describe_late_rank(culprit, healed, now_ns)}"
        verdict = replace(verdict, reason=verdict.reason + remark)
    return replace(verdict, replayed_step_ns=now_ns, counterfactuals=(healed, *replayed.without))


def _fit(culprit: Culprit, now_ns: int) -> Culprit:
    """``culprit`` with what it costs at most of the step that all gains are of."""
    cost_ns = min(culprit.cost_ns, now_ns)
    return replace(culprit, cost_ns=cost_ns, step_without_it_ns=now_ns - cost_ns)


def _replay(replays: Replays, facts: FactSheet) -> _Replayed:
    paused_ns = replays.predictor.paused_after(replays.base)  # a rank's pauses go with its delay
    return _Replayed(
        replays.unpaused_ns(), replay_without_walls(replays, facts), paused_ns, is_healed=bool(replays.base)
    )


def _holds_back(healed: Counterfactual, replayed: _Replayed) -> bool:
    """Whether the late rank holds the run back: it costs as much as a wall must, or no wall gives back far more.

    ``replayed``: the step without the rank's delay. Where the replay does not show the delay, what was traced counts.
    """
    if not _is_shown(healed.saved_ns) or healed.saved_ns >= verdict_thresholds.MINIMUM_RECOVERABLE_FRACTION * (
        healed.step_ns + healed.saved_ns
    ):
        return True
    largest = replayed.candidates[0]
    return healed.saved_ns >= verdict_thresholds.MINIMUM_CULPRIT_TO_WALL_FRACTION * largest.ns


def _describe_late_rank(culprit: Culprit, healed: Counterfactual, now_ns: int) -> str:
    """What a late rank costs that does not hold the run back."""
    delays = "is" if len(culprit.ranks) == 1 else "are"
    return (
        f"{capitalize(culprit.named)} {delays} late, too, but that is not what holds the run back: on time, the step "
        f"is shorter by {_amount(healed.saved_ns, now_ns)}."
    )


@dataclass(frozen=True, slots=True)
class _Replayed:
    """The replayed step that is judged, and it without walls."""

    step_ns: int
    """Without the pauses of the host: no wall holds them."""
    without: tuple[Counterfactual, ...]
    paused_ns: int
    """What these cost."""
    is_healed: bool
    """Whether it is the step without the delay of the rank to fix first."""

    def saved_ns(self, *walls: str) -> int | None:
        """What removing ``walls`` together saves; None where one of them alone saves nothing."""
        return next((each.saved_ns for each in self.without if set(each.without) == set(walls)), None)

    @property
    def candidates(self) -> tuple[_Candidate, ...]:
        """The four walls by what their removal saves, largest first; equal ones in their order.

        Where the two halves of the third wall save most and are too close to tell apart, they are one, together.
        """
        found = [
            _Candidate(wall, sub_wall, max(0, self.saved_ns(name) or 0), ((name.rpartition(".")[2], 0),))
            for name, (wall, sub_wall) in _WALLS.items()
        ]
        first, second, *others = sorted(found, key=lambda candidate: -candidate.ns)
        both_ns = self.saved_ns(COMPUTE, HOST)
        if first.wall is second.wall and both_ns is not None and not self.is_clear(first, second):
            return (_Candidate(first.wall, None, both_ns, (*first.parts, *second.parts)), *others)
        return (first, second, *others)

    def is_clear(self, first: _Candidate, second: _Candidate) -> bool:
        """Whether ``first`` is further from ``second`` than two captures of one run are from each other."""
        return first.ns - second.ns >= verdict_thresholds.MINIMUM_MARGIN_FRACTION * self.step_ns

    @property
    def best_pair(self) -> tuple[int, tuple[str, ...]]:
        """The two walls that save most beyond what they save alone: by how much, and which."""
        pairs = [each for each in self.without if len(each.without) == 2]
        beyond = [(each.saved_ns - sum(self.saved_ns(wall) or 0 for wall in each.without), each) for each in pairs]
        most = max(beyond, key=lambda pair: pair[0], default=None)
        return (0, ()) if most is None else (most[0], most[1].without)


def _judge(facts: FactSheet, culprit: Culprit | None, replayed: _Replayed | None) -> Verdict:
    if culprit is None:
        return _judge_walls(facts, replayed)
    verdict = _judge_walls(without_culprit(facts), replayed)
    judged = "that step is judged here"
    if replayed is not None and replayed.step_ns + replayed.paused_ns != culprit.step_without_it_ns:
        judged = "the walls are of the step with it, because a replay does not show the delay"
    preface = (
        f"Without the delay of {culprit.named} the step takes {in_ms(culprit.step_without_it_ns)}, and {judged}."
        f"{_describe_crawling(facts, culprit, replayed)} "
    )
    return replace(verdict, reason=preface + verdict.reason, step_ns=_whole(facts, "step_ns"), culprit=culprit)


def _find_culprit(facts: FactSheet, stragglers: Sequence[Straggler]) -> Culprit | None:
    """The rank to fix first; None where no rank costs the others time for a reason of its own."""
    rank, cost_ns, step_ns = (_whole(facts, name) for name in ("culprit_rank", CULPRIT_COST, "step_ns"))
    if rank is None or not cost_ns or not step_ns:
        return None
    straggler = next((each for each in stragglers if each.rank == rank), None)
    return Culprit(
        rank=rank,
        cause=str(facts.get("culprit_cause").value),
        cost_ns=cost_ns,
        step_without_it_ns=step_ns - cost_ns,
        likely_reason=straggler.likely_reason if straggler else "",
        evidence=straggler.evidence if straggler else "",
        slow_with=straggler.slow_with if straggler else (),
    )


def _describe_crawling(facts: FactSheet, culprit: Culprit, replayed: _Replayed | None) -> str:
    crawling_ns = _whole(facts, "crawling_transfer_ns")
    if not crawling_ns:
        return ""
    part = "they are part of the delay" if replayed and replayed.is_healed else "they are not part of the delay either"
    return (
        f" {in_ms(crawling_ns)} of transfer are not counted as communication to save, because collectives crawl while "
        f"another process has the GPU of rank {culprit.rank}; {part}."
    )


def _judge_walls(facts: FactSheet, replayed: _Replayed | None) -> Verdict:
    step_ns = _whole(facts, "step_ns")
    recoverable = {wall: _whole(facts, name) for wall, name in _FACTS.items()}
    if reason := _reason_to_abstain(facts, step_ns, recoverable):
        return _abstain(reason, step_ns, recoverable)
    assert step_ns is not None  # _reason_to_abstain names a missing step
    traced_ns, candidates = max(1, round(find_unpaused(facts))), _rank(recoverable)
    length_ns, paused_ns = (replayed.step_ns, replayed.paused_ns) if replayed else (traced_ns, step_ns - traced_ns)
    pauses = _describe_pauses(paused_ns, length_ns)
    largest_ns = (replayed.candidates if replayed else candidates)[0].ns
    if facts.get("host_pauses_recur").value is True and paused_ns >= max(
        largest_ns, verdict_thresholds.MINIMUM_RECOVERABLE_FRACTION * (length_ns + paused_ns)
    ):
        return _abstain(f"{pauses}. It does so in every step, and no wall holds more.", step_ns, recoverable)
    if replayed:
        verdict = _judge_replayed(facts, traced_ns, recoverable, replayed)
    elif candidates[0].ns < verdict_thresholds.MINIMUM_RECOVERABLE_FRACTION * traced_ns:
        verdict = _judge_lean_step(facts, traced_ns, recoverable, candidates[0])
    else:
        verdict = _compare_walls(facts, traced_ns, recoverable, candidates)
    preface = f"{pauses}; the step without is judged here. " if pauses else ""
    return replace(verdict, reason=preface + verdict.reason, step_ns=step_ns)


def _reason_to_abstain(facts: FactSheet, step_ns: int | None, recoverable: Mapping[str, int | None]) -> str:
    if not step_ns:
        return "The step length is unknown: no step was found in the traces."
    if signs := lacking_signs(facts):
        reasons = "; ".join(facts.get(name).missing_reason or "" for name in signs)
        return f"The walls are those of a Megatron training run: {reasons}."
    graph, unclassified = facts.number("cuda_graph_fraction"), facts.number("unclassified_fraction")
    if graph is not None and graph >= verdict_thresholds.MAXIMUM_CUDA_GRAPH_FRACTION:
        return (
            f"{in_percent(graph)} of the traced step is inside CUDA graphs whose kernels were not recorded. "
            "Capture again with --cuda-graph-trace=node."
        )
    if unclassified is not None and unclassified >= verdict_thresholds.MAXIMUM_UNCLASSIFIED_FRACTION:
        return f"{in_percent(unclassified)} of the traced step is in kernels of unknown kind, so it belongs to no wall."
    spread = facts.number("kernel_spread_ratio")
    is_alone = facts.number("ranks_captured_count") == 1  # with healthy peers one of these is judged
    if is_alone and spread is not None and spread >= MINIMUM_SHARED_GPU_SPREAD_RATIO:
        return (
            f"The GPU of rank {facts.number('kernel_spread_rank'):.0f}, the only one captured, is slow by itself: "
            f"kernels that repeat take {spread:.2f} times their fastest call on average, and 1.0 to 1.1 times on a GPU "
            "that runs nothing else. Another process is likely on it (look at nvidia-smi), and a wall of this step "
            "would be that process's. Capture its peers, or the rank again on a free GPU."
        )
    if facts.get("data_loader_sets_pace").value is True:
        share = in_percent(facts.number("data_loader_wait_fraction") or 0)
        return (
            f"The step waits for its data loader ({share} of the traced step), which delivers batches at a pace of its "
            "own: nothing that the GPU or its host does shortens it."
        )
    wait, unexplained = facts.number("wait_exposed_fraction"), facts.number("idle_other_fraction")
    if wait is not None and wait >= verdict_thresholds.MAXIMUM_WAIT_FRACTION:
        share = f"{'Up to ' if _is_transfer_least(facts) else ''}{in_percent(wait)}"
        return (
            f"{share} of the traced step waits for other ranks, and these traces do not show why they are late. "
            "Capture every rank of the group."
        )
    if unexplained is not None and unexplained >= verdict_thresholds.MAXIMUM_UNEXPLAINED_IDLE_FRACTION:
        return (
            f"The GPU is idle for {in_percent(unexplained)} of the traced step although its next operation was "
            "launched, or the launch was not recorded (start-up, lazy loading, dependencies). Capture steady training "
            "steps."
        )
    if missing := [_FACTS[wall] for wall, ns in recoverable.items() if ns is None]:
        return f"The walls cannot be compared, because these are unknown: {list_labels(missing, facts)}."
    return ""


def _describe_pauses(paused_ns: int, unpaused_ns: int) -> str:
    """What the pauses of the host cost, if they cost anything. No wall holds them: walls are of the step without."""
    if not _is_shown(paused_ns):
        return ""
    length_ns = unpaused_ns + paused_ns
    return (
        f"The host pauses for {_amount(paused_ns, length_ns)} of the {in_ms(length_ns)} step, which no setting of the "
        "model shortens"
    )


def _judge_replayed(
    facts: FactSheet,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    replayed: _Replayed,
) -> Verdict:
    """The wall whose removal shortens the replayed step most, unless it is too close to the next one."""
    first, second = replayed.candidates[:2]
    length_ns = replayed.step_ns
    least_ns = verdict_thresholds.MINIMUM_RECOVERABLE_FRACTION * length_ns
    beyond_ns, pair = replayed.best_pair
    joint_ns = (replayed.saved_ns(*pair) or 0) if pair else 0
    if (
        first.ns < least_ns
        and joint_ns >= least_ns
        and beyond_ns >= verdict_thresholds.MINIMUM_MARGIN_FRACTION * length_ns
    ):
        alone = " and ".join(
            f"{_amount(replayed.saved_ns(wall) or 0, length_ns)} without {_REMOVED[wall]}" for wall in pair
        )
        return _abstain(
            f"Two walls only fall together: the {in_ms(length_ns)} step (replayed without the profiler) is shorter by "
            f"{alone}, but by {_amount(joint_ns, length_ns)} without both.",
            step_ns,
            recoverable,
        )
    if first.ns < least_ns:
        return _judge_lean_step(facts, step_ns, recoverable, first, length_ns)
    if reason := _why_communication_may_be_more(facts, step_ns, recoverable, first):
        return _abstain(reason, step_ns, recoverable)
    margin = (first.ns - second.ns) / length_ns
    if not replayed.is_clear(first, second):
        reason = (
            f"The {in_ms(length_ns)} step (replayed without the profiler) is shorter by {_amount(first.ns, length_ns)} "
            f"without {_REMOVED[first.name]}, and by {_amount(second.ns, length_ns)} without {_REMOVED[second.name]}: "
            f"too close to decide which of them limits the run.{_describe_joint(replayed, first, second)}"
            f"{_describe_waiting(facts)}"
        )
        return _abstain(reason, step_ns, recoverable)
    rest = f"next, without {_REMOVED[second.name]}, by {_amount(second.ns, length_ns)}"
    reason = (
        f"Without {_REMOVED[first.name]} the {in_ms(length_ns)} step (replayed without the profiler) is shorter by "
        f"{_amount(first.ns, length_ns)}{_describe_halves(replayed, first)}; "
        f"{'no other wall shortens it' if _is_nothing(second) else rest}."
        f"{_describe_joint(replayed, first, second)}{_describe_waiting(facts)}"
    )
    return _name_wall(first, second, margin, reason, step_ns, recoverable)


def _name_wall(
    first: _Candidate,
    second: _Candidate,
    margin: float,
    reason: str,
    step_ns: int,
    recoverable: Mapping[str, int | None],
) -> Verdict:
    return Verdict(
        wall=first.wall,
        sub_wall=first.sub_wall,
        abstained=False,
        reason=reason,
        step_ns=step_ns,
        runner_up_wall=None if _is_nothing(second) else second.wall,
        runner_up_sub_wall=None if _is_nothing(second) else second.sub_wall,
        margin_fraction=margin,
        recoverable_ns=recoverable,
    )


def _describe_halves(replayed: _Replayed, wall: _Candidate) -> str:
    """What each half of the third wall saves alone, where no half is named; else empty."""
    if len(wall.parts) == 1:
        return ""
    host, compute = (_amount(max(0, replayed.saved_ns(half) or 0), replayed.step_ns) for half in (HOST, COMPUTE))
    return f" (by {host} without host time alone, by {compute} without the other half alone: too close to name one)"


def _describe_joint(replayed: _Replayed, first: _Candidate, second: _Candidate) -> str:
    """What two walls save together, if that is not the sum of what each of them saves alone."""
    joint_ns = replayed.saved_ns(first.name, second.name)
    if joint_ns is None or _is_nothing(second):
        return ""
    beyond_ns = joint_ns - first.ns - second.ns
    if abs(beyond_ns) < verdict_thresholds.MINIMUM_MARGIN_FRACTION * replayed.step_ns:
        return ""
    saved = f" Both at once save {_amount(joint_ns, replayed.step_ns)}"
    if beyond_ns < 0:
        return f"{saved}, {in_ms(-beyond_ns)} less than the two added: they share that time."
    return f"{saved}, {in_ms(beyond_ns)} more than the two added: that part falls only together."


def _compare_walls(
    facts: FactSheet,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    candidates: tuple[_Candidate, ...],
) -> Verdict:
    first, second = candidates[0], candidates[1]
    margin = (first.ns - second.ns) / step_ns
    if reason := _why_communication_may_be_more(facts, step_ns, recoverable, first):
        return _abstain(reason, step_ns, recoverable)
    if margin < verdict_thresholds.MINIMUM_MARGIN_FRACTION:
        reason = (
            f"{capitalize(first.noun)} ({in_ms(first.ns)}, {in_percent(first.ns / step_ns)}) and {second.noun} "
            f"({in_ms(second.ns)}, {in_percent(second.ns / step_ns)}) are too close to decide which of them limits "
            f"the run.{_describe_waiting(facts)}"
        )
        return _abstain(reason, step_ns, recoverable)
    reason = (
        f"{capitalize(first.changes)} can save up to {in_ms(first.ns)} ({in_percent(first.ns / step_ns)} of the "
        f"{in_ms(step_ns)} step{_parts(first)}); {_runner_up(second, step_ns)}."
        f"{_describe_waiting(facts)}{_describe_profiler(facts)}"
    )
    return _name_wall(first, second, margin, reason, step_ns, recoverable)


def _why_communication_may_be_more(
    facts: FactSheet,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    first: _Candidate,
) -> str:
    """Why communication may save more than the ``first`` wall: how much of it is transfer is not known. Else empty."""
    communication_ns, waiting_ns = recoverable["communication"], _whole(facts, "ep_wait_exposed_ns")
    if first.wall is Wall.COMMUNICATION or communication_ns is None or not waiting_ns or not _is_transfer_least(facts):
        return ""
    if communication_ns + waiting_ns - first.ns < verdict_thresholds.MINIMUM_MARGIN_FRACTION * step_ns:
        return ""
    return (
        f"Communication changes can save at most between {in_ms(communication_ns)} and "
        f"{in_ms(communication_ns + waiting_ns)} of the {in_ms(step_ns)} step, {first.changes} up to {in_ms(first.ns)}."
        " Routing is not known to be balanced and the sizes of the token exchanges were not recorded, so these traces "
        "do not show how much of them is waiting for peers. Capture every rank of the group."
    )


def _is_transfer_least(facts: FactSheet) -> bool:
    return facts.get("ep_transfer_is_lower_bound").value is True


def _judge_lean_step(
    facts: FactSheet,
    step_ns: int,
    recoverable: Mapping[str, int | None],
    largest: _Candidate,
    replayed_ns: int | None = None,
) -> Verdict:
    """The verdict for a step in which no wall can save much: compute-bound if compute fills the step.

    ``replayed_ns``: the step without the profiler, which adds to its idle time and not to its kernels.
    """
    busy, wait = facts.number("compute_busy_fraction"), facts.number("wait_exposed_fraction")
    length_ns, step = replayed_ns or step_ns, f"{in_ms(step_ns)} traced step"
    if replayed_ns:
        step = f"{in_ms(replayed_ns)} step (replayed without the profiler)"
    if busy is not None:
        busy = min(1.0, busy * step_ns / length_ns)
    little = f"no wall can save more than {_amount(largest.ns, length_ns)}"
    if busy is not None and busy >= verdict_thresholds.MINIMUM_COMPUTE_BUSY_FRACTION:
        # A wall counts what holds the same work back, so an entry of the plan may gain more than that.
        reason = (
            f"The {step} is mostly compute ({in_percent(busy)}), and {little}: only edits that change the work itself, "
            "such as its precision or the size of a micro-batch, may save more."
        )
        return Verdict(Wall.COMPUTE_HOST, SubWall.COMPUTE, False, reason, step_ns, None, None, None, recoverable)
    little = f"of the {step} {little}"
    if wait is not None and wait >= verdict_thresholds.NOTABLE_WAIT_FRACTION:
        reason = (
            f"{in_percent(wait)} of the traced step waits for other ranks, which these traces do not explain, and "
            f"{little}. Capture every rank."
        )
    elif busy is None:
        reason = f"{capitalize(little)}, and how much of the step is compute is unknown."
    else:
        reason = f"{capitalize(little)}, and only {in_percent(busy)} of it is compute: the rest is unexplained."
    return _abstain(reason, step_ns, recoverable)


def _rank(recoverable: Mapping[str, int | None]) -> tuple[_Candidate, ...]:
    """Walls by recoverable time, largest first; equal ones in order of :class:`Wall`."""
    compute, host = recoverable["compute_host.compute"] or 0, recoverable["compute_host.host"] or 0
    half = SubWall.COMPUTE if compute >= host else SubWall.HOST
    memory, communication = recoverable["memory"] or 0, recoverable["communication"] or 0
    halves = (("compute", compute), ("host", host))
    candidates = (
        _Candidate(Wall.MEMORY, None, memory, (("memory", memory),)),
        _Candidate(Wall.COMMUNICATION, None, communication, (("communication", communication),)),
        _Candidate(Wall.COMPUTE_HOST, half, compute + host, tuple(half for half in halves if half[1]) or halves),
    )
    return tuple(sorted(candidates, key=lambda candidate: -candidate.ns))


def _abstain(reason: str, step_ns: int | None, recoverable: Mapping[str, int | None]) -> Verdict:
    return Verdict(None, None, True, reason, step_ns, None, None, None, recoverable)


def _parts(candidate: _Candidate) -> str:
    """The time of each part if there are several, the larger first: ``: host 207.5 ms, compute 111.4 ms``."""
    if len(candidate.parts) == 1:
        return ""
    ordered = sorted(candidate.parts, key=lambda part: -part[1])
    return f": {', '.join(f'{name} {in_ms(ns)}' for name, ns in ordered)}"


def _is_nothing(candidate: _Candidate) -> bool:
    """Whether the time of the wall would be shown as 0.0 ms."""
    return not _is_shown(candidate.ns)


def _is_shown(ns: int) -> bool:
    return ns > 0 and in_ms(ns) != in_ms(0)


def _runner_up(candidate: _Candidate, step_ns: int) -> str:
    if _is_nothing(candidate):
        return "the other walls have nothing to save"
    verb = "is" if len(candidate.parts) == 1 else "are"
    return f"next {verb} {candidate.noun} with {_amount(candidate.ns, step_ns)}"


def _describe_waiting(facts: FactSheet) -> str:
    wait = facts.number("wait_exposed_fraction")
    if wait is None or wait < verdict_thresholds.NOTABLE_WAIT_FRACTION:
        return ""
    share = f"{'up to ' if _is_transfer_least(facts) else ''}{in_percent(wait)}"
    return (
        f" In addition, {share} of the traced step waits for other ranks, which no edit here addresses."
        f"{_name_missing(facts)}"
    )


def _name_missing(facts: FactSheet) -> str:
    """Where to look for the rank that the others wait for, if it is none of the captured ones."""
    captured, world = facts.number("ranks_captured_count"), facts.number("world_size")
    if not captured or not world or captured >= world or facts.number("culprit_rank") is not None:
        return ""
    return (
        f" No captured rank is late for a reason of its own, and {captured:.0f} of {world:.0f} were captured: look "
        "among the missing ranks for one that never waits. Capture every rank of the group."
    )


def _describe_profiler(facts: FactSheet) -> str:
    """That host time is counted without what the profiler added, if the log shows how much that is."""
    excess_ns, idle_ns = facts.number("profiler_excess_ns"), facts.number("host_idle_ns")
    counted_ns = facts.number("host_recoverable_ns")
    if not excess_ns or not idle_ns or counted_ns is None:
        return ""
    return (
        f" {in_ms(round(idle_ns - counted_ns))} of {in_ms(round(idle_ns))} host time is not counted: according to the "
        f"log, unprofiled steps are {in_ms(round(excess_ns))} shorter, which the profiler added to idle time and waits."
    )


def _whole(facts: FactSheet, name: str) -> int | None:
    number = facts.number(name)
    return None if number is None else round(number)


def _amount(ns: int, step_ns: int) -> str:
    return f"{in_ms(ns)} ({format_share(ns / step_ns)})"
