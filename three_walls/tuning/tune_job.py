"""The loop: runs the base and the edits in turn, keeps what is measured to be faster, and writes down every run."""

from __future__ import annotations

import json
import math
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from three_walls.capture.capture_commands import RUN_CONFIG
from three_walls.capture.capture_guide import BRIDGE
from three_walls.lib.errors import ThreeWallsError, UsageError
from three_walls.lib.files import write_texts
from three_walls.lib.hydra import write_value
from three_walls.lib.plain_data import ConfigData
from three_walls.log.read_log import read_logs
from three_walls.megatron.settings.log_settings import read_log_settings
from three_walls.megatron.settings.merge_settings import is_same, merge_sources
from three_walls.megatron.settings.option_words import VARIABLE_PREFIX, read_command_line
from three_walls.megatron.settings.run_config import ConfigValue, RunConfig
from three_walls.megatron.settings.setting_sources import SourceSettings
from three_walls.pipeline import analyze
from three_walls.report.report import LiveReport
from three_walls.runs.read_runs import LABEL_NAME
from three_walls.trace.report_export import find_nsys
from three_walls.tuning import journal
from three_walls.tuning.choose_trial import TrialSearch
from three_walls.tuning.make_space import (
    Given,
    SpaceValue,
    core_name,
    find_clashes,
    find_unsettled,
    freeze_space,
    join_planned,
    label_of,
    list_given,
    list_planned,
    list_strange,
    logged_name,
    make_space,
    most_runs_in,
    predict,
    predict_space,
    split_value,
)
from three_walls.tuning.other_ranks import OtherRanks
from three_walls.tuning.run_trial import Ended, Limits, ended_of, run_job
from three_walls.tuning.trials import (
    BASE,
    Choice,
    Clashes,
    ExpectedGain,
    MemoryUse,
    Space,
    TriedChoice,
    Tunable,
    Variant,
)
from three_walls.tuning.tuned_command import TEMPLATE, VARIABLE, TunedCommand, as_line
from three_walls.tuning.tuned_page import Tuned, conclude, render_tuned

Log = str | Path | Sequence[float]
"""What a caller's run gives: a path to a training log, its text, or the length of every step in seconds."""
Overrides = Mapping[str, ConfigData]
"""What a caller's run is asked to change, by the names of the space, or of Megatron Core; empty for the base."""
Say = Callable[[str], None]
_QUIET_FACTOR = 4.0
"""A run may be silent so many times as long as the base was, since edits compile and start up longer."""
_LEAST_QUIET_S = 30.0
_RUN_FACTOR = 4.0
_NEARLY_ALL = 0.9
"""Of the base's iterations: lines of several processes may be torn."""
_LOG_NAME = "train.log"
_UNHEEDED = "the override did not reach the job"
PROFILED_STEPS = "4"
_MOST_CAPTURES = 3
"""Of the base, and of configurations that were kept."""
_ANOTHER_STEP = 0.05
"""A step that is so much shorter may be held back by another wall, so that its plan is another one."""
_ALIKE = 0.02
"""Two steps that differ by less, beside what their iterations leave open, may be of one configuration."""
_RUNS_BY_PREDICTIONS = 6
"""So many runs after a capture that predicts the values of a space find more than one run more does without."""
_CLEARLY = 2.0
"""Deviations by which a measured gain lies outside its predicted range."""


@dataclass(frozen=True, slots=True)
class TuneRequest:
    """What to tune, and how far."""

    out: Path
    command: TunedCommand | None = None
    """None where the caller runs the job itself."""
    given: Mapping[str, Sequence[SpaceValue]] = field(default_factory=dict)
    """The user's own settings with their values; the plan's entries join them unless ``only_given``. Then a capture
    predicts these alone, and counts as a run."""
    only_given: bool = False
    may_capture: bool = True
    """Whether the job may be profiled, if nsys is at hand."""
    allowed: tuple[str, ...] = ()
    """Applicabilities of entries to try in addition to execution-only ones."""
    budget_s: float = float("inf")
    most_runs: int | None = None
    worth: float = 0.01
    patience_s: float = 900.0
    """How long the base may take for its first iteration, or between two."""
    ranks: tuple[int, ...] = (0,)
    """Those to profile."""
    trace: Path | None = None
    """A capture of the base, which is then not profiled."""


class Tuning:
    """A tuning in its directory: what was run so far, and what comes next. ``say``: called with a line for the user."""

    def __init__(
        self,
        request: TuneRequest,
        say: Say,
        lock: int,
        run: Callable[[Overrides], Log] | None = None,
        others: int = 0,
    ) -> None:
        """``others``: the number of ranks that follow what this one decides."""
        self._others = OtherRanks(request.out, others)
        self._request, self._say, self._lock, self._run_self = request, say, lock, run
        self._lines = journal.read(request.out)
        self._report: LiveReport | None = None
        self._profiled: Mapping[str, str] | None = None
        """What the profiled configuration changes."""
        self._notes: list[str] = []
        self._given = self._list_given()
        self._planned: tuple[Tunable, ...] = ()
        self._clashes: tuple[tuple[Tunable, ...], Clashes] | None = None
        """With the settings that they are of."""
        self._predicted: tuple[Space, Mapping[str, str] | None, Space] | None = None
        """A space, what the capture changes, and the space with what that predicts."""
        self.end = ""

    @property
    def _base_log(self) -> Path:
        number = self._measured[0]["run"] if self._measured else 0
        return self._request.out / "runs" / f"{number:03d}" / _LOG_NAME

    @property
    def _framework(self) -> str | None:
        return self._request.command.framework if self._request.command else None

    def run(self) -> Tuned:
        """Runs until nothing is worth another run, or the budget is spent."""
        with self._others:
            return self._run()

    def _run(self) -> Tuned:
        if self._lines:
            self._add({"kind": "resume"})
        self._note_doubts()
        self._learn_from_capture()
        while True:
            search = self._search()
            choice, why = search.next()
            if self._left_s < (self._typical_s if choice is not None else 0.0):
                goes_on = "" if self._run_self else ": --resume with a larger --budget goes on"
                choice, why = None, f"the budget of time is spent{goes_on}"
            if self._has_moved(search, is_over=choice is None):
                self._profile(search.space, search.kept)
                continue
            if choice is not None and self._never_arrived:
                choice, why = None, "no override reaches the job: its script has to pass its arguments on"
            if choice is None:
                self._note_unchanged()
                self.end = why
                return self._write(search)
            if stated := self._find_stated():
                names = [setting.name for setting in search.space.settings]
                choice = tuple(int(name in stated) for name in names)
                why = "to see whether these are the base's values"
            self._try(choice, why, search, stated)
            if stated or (len(self._measured) == 1 and self._runs[-1]["step_s"]):  # the base
                self._given = self._list_given()
                self._note_doubts()
                self._learn_from_capture()
            self._write(self._search())

    def preview(self) -> Iterator[str]:
        """The commands that are known before anything runs, for a shell, and how many runs follow at most."""
        command, search = self._request.command, self._search()
        assert command
        yield from self._list_doubts()
        if self._given.unknown:
            yield (
                f"the command states no value of {', '.join(self._given.unknown)}: unless the log of the base prints "
                "it, the first one is run to see whether it is the base's; state it, and that run is saved"
            )
        yield f"base: {as_line(command.put_in(()), command.environment)}"
        only_given, is_profiled = self._request.only_given, False
        if self._is_worth_a_capture(search.most_runs) and not (is_profiled := find_nsys() is not None):
            yield self._no_nsys
        if is_profiled:
            out = self._request.out.absolute() / "profiles"
            words = command.profiled((), out, self._request.ranks, PROFILED_STEPS)
            what_for = ", which predicts what is tried" if only_given else ""
            yield f"profiled base{what_for}: {as_line(words, command.environment)}"
        if is_profiled and not only_given:
            yield (
                "the same with what was kept, where that is measured outside its prediction or shortens the step "
                f"by {_ANOTHER_STEP:.0%}, for the entries of its plan: {_MOST_CAPTURES - 1} times at most"
            )
        for setting in search.space.settings:
            for each in setting.values:
                variables = {**command.environment, **each.environment}
                yield f"{each.label}: {as_line(command.put_in(each.words), variables)}"
        if is_profiled and not only_given:
            yield "the entries of the base's plan, which its capture gives, each in a few runs"
        per_run = f"each ends after {command.iterations} iterations or {self._request.patience_s:.0f} s without one"
        budget_s = self._request.budget_s
        within = "" if math.isinf(budget_s) else f", all within {budget_s / 60:.0f} min"
        is_known = self._request.most_runs or only_given or not is_profiled
        count = f"{search.most_runs} run{'s' if search.most_runs > 1 else ''}"
        most = f"at most {count}" if is_known else "some runs"
        profiled = "the profiled one, " if is_profiled and only_given else ""
        yield f"{most}, {profiled}pairs of these and repetitions included; {per_run}{within}"

    def _search(self) -> TrialSearch:
        space = make_space((*self._given.settings, *self._planned), None if self._planned else self._given.sweep)
        space = replace(space, clashes=self._find_clashes(space))
        trials = [trial for line in self._list_counted() if (trial := _as_trial(line, space))]
        most = self._request.most_runs or most_runs_in(space, is_given=not self._planned)
        if self._request.only_given:  # where the sweep is what a tuning is measured by
            most -= len(self._captures)
        return TrialSearch(self._predict(space), trials, most, self._request.worth)

    def _predict(self, space: Space) -> Space:
        """``space`` with what its last capture predicts."""
        if self._report is None or self._report.replay is None:
            return space
        if self._predicted is None or self._predicted[:2] != (space, self._profiled):
            changed = self._profiled or {}
            numbers = ([each.label for each in setting.values] for setting in space.settings)
            profiled = tuple(
                labels.index(changed[setting.name]) + 1 if changed.get(setting.name) in labels else BASE
                for setting, labels in zip(space.settings, numbers, strict=True)
            )
            self._predicted = space, self._profiled, predict_space(space, profiled, self._report.replay)
        return self._predicted[2]

    def _find_clashes(self, space: Space) -> Clashes:
        """Values of Megatron-Bridge's settings that exclude each other, by what is known of the base."""
        if self._framework != BRIDGE or not self._measured:
            return frozenset()
        if self._clashes is None or self._clashes[0] != space.settings:
            self._clashes = space.settings, find_clashes(space.settings, self._read_base())
        return self._clashes[1]

    def _read_base(self) -> RunConfig:
        """What the base's log and its command say, the log before the command."""
        words = self._request.command.words if self._request.command else ()
        return merge_sources([*_read_sources(self._base_log), read_command_line(words)])

    @property
    def _never_arrived(self) -> bool:
        """Whether two runs printed the base's values, and none ran with others."""
        ignored = [line for line in self._runs if _UNHEEDED in (line["failure"] or "")]
        return len(ignored) > 1 and not any(line["changed"] for line in self._measured)

    def _note_unchanged(self) -> None:
        """Says so where no edit made a difference that matters: overrides may not arrive, and logs need not show it."""
        steps_s = [line["step_s"] for line in self._measured]
        edited = {tuple(sorted(line["changed"].items())) for line in self._measured if line["changed"]}
        if len(edited) > 1 and max(steps_s) < min(steps_s) * (1 + self._request.worth):
            self._note("no edit changes the step by what matters: do the overrides reach the job?")

    def _list_given(self) -> Given:
        """The user's settings, as far as the base is known."""
        command = self._request.command
        logged = _read_settings(self._base_log)
        names = {
            key for name, values in self._request.given.items() for each in values for key in split_value(name, each)
        }
        found = {name: logged[logged_name(name)].value for name in sorted(names) if logged_name(name) in logged}
        found |= {f"env.{name}": text for name, text in (command.environment if command else {}).items()}
        found |= {
            key: each for name in self._settled for key, each in split_value(name, self._request.given[name][0]).items()
        }
        words = command.words if command else None
        return list_given(self._request.given, self._framework, words, found, self._read_base())

    def _find_stated(self) -> tuple[str, ...]:
        """Settings of which it is not known whether the base has their first values, to be run with these."""
        runs = [line for line in self._lines if line.get("stated")]
        if not self._measured or any(line["failure"] for line in runs):
            return ()
        return find_unsettled(self._given.unknown, [(tuple(line["stated"]), not line["changed"]) for line in runs])

    @property
    def _settled(self) -> set[str]:
        """Settings that a run showed to have their first values in the base."""
        return {name for line in self._lines if line.get("stated") and not line["changed"] for name in line["stated"]}

    @property
    def _no_nsys(self) -> str:
        if self._request.only_given:
            return "nsys is not on PATH: tuned by logs alone, without predictions"
        advice = "" if self._request.given else "; give --space to say what to try"
        return f"nsys is not on PATH: tuned by logs alone, without a plan{advice}"

    def _list_doubts(self) -> Iterator[str]:
        """What a user should know before runs are spent."""
        command = self._request.command
        if command and not command.framework:
            yield (
                "the command is neither Megatron-Bridge's nor Megatron-LM's, as it looks: it is not told to end after "
                f"{command.iterations} iterations, nor to save nothing, and names of Megatron Core are appended as "
                "they are; --bridge or --megatron-lm says whose it is"
            )
        if command and command.framework and (strange := list_strange(self._request.given)):
            yield f"no setting that three-walls knows, and appended as it is: {', '.join(strange)}"
        yield from (f"not tried: {each}" for each in self._given.left_out)
        if self._base_log.is_file() and any(event.kind == "checkpoint" for event in read_logs([self._base_log]).events):
            yield "the base saves checkpoints, and so does every run, over those that are there: tell its script not to"

    @property
    def _runs(self) -> list[dict[str, Any]]:
        """Those of the journal. What turned out to be the base's is no change."""
        bases = {(name, label_of(name, self._request.given[name][0])) for name in self._settled}
        runs = (line for line in self._lines if line["kind"] == "run")
        return [line | {"changed": dict(line["changed"].items() - bases)} for line in runs]

    @property
    def _measured(self) -> list[dict[str, Any]]:
        return [line for line in self._runs if line["step_s"]]

    def _list_counted(self) -> list[dict[str, Any]]:
        """The runs, but for those before the user had it go on that failed though the same ran, or as the base.

        What made them fail may be mended.
        """
        mended = max((place for place, line in enumerate(self._lines) if line["kind"] == "resume"), default=0)
        well = [{}, *(line["changed"] for line in self._measured)]
        lost = [line for line in self._lines[:mended] if line["kind"] == "run" and not line["step_s"]]
        return [line for line in self._runs if line not in lost or line["changed"] not in well]

    @property
    def _elapsed_s(self) -> float:
        return float(sum(line.get("wall_s", 0.0) for line in self._lines))

    @property
    def _left_s(self) -> float:
        return self._request.budget_s - self._elapsed_s

    @property
    def _typical_s(self) -> float:
        return float(statistics.median([line["wall_s"] for line in self._runs] or [0.0]))

    def _add(self, line: dict[str, Any]) -> None:
        journal.append(self._request.out, line)
        self._lines.append(line)

    def _try(self, choice: Choice, why: str, search: TrialSearch, stated: Collection[str] = ()) -> None:
        """Runs ``choice``. ``stated``: settings that may have the base's values in it."""
        space, number = search.space, len(self._runs)
        variants = space.values_of(choice)
        changed = space.describe(choice)
        name = ", ".join(changed.values()) or "base"
        self._say(f"run {number}: {name} ({why})")
        place = f"{number:03d}"
        if self._run_self is not None:
            called = self._call({key: value for each in variants for key, value in each.config.items()})
            ended = replace(called, failure=called.failure or self._find_other_batch(called))
        else:
            ended = self._launch(variants, place, [*changed], name)
            if self._drop_out_of_time(ended, name):
                return
        if stated and self._is_base(ended):
            changed, name = {}, f"base, with {name}"
        gain = variants[0].gain if len(variants) == 1 else self._expect(variants)
        self._add(
            {
                "kind": "run",
                "run": number,
                "changed": changed,
                "stated": [*stated],
                "name": name,
                "why": why,
                "words": _words_of(variants),
                "environment": _environment_of(variants),
                "set": [_as_set(key, value) for each in variants for key, value in each.config.items()],
                "predicted": [asdict(gain)] if gain else [],
                "step_s": ended.step_s,
                "error": ended.error,
                "failure": ended.failure,
                "steps_ms": list(ended.steps_ms),
                "memory": ended.memory,
                "limit_bytes": ended.limit_bytes,
                "loss": ended.loss,
                "wall_s": ended.wall_s,
                "quiet_s": ended.longest_quiet_s,
                "global_batch_size": ended.global_batch_size,
                "iterations": ended.iterations,
            }
        )
        step = f"{ended.step_s * 1000:.1f} ms" if ended.step_s else f"failed: {ended.failure}"
        self._say(f"run {number}: {step}")

    def _expect(self, variants: Sequence[Variant]) -> ExpectedGain | None:
        """What the capture of the base predicts of ``variants`` together."""
        replayed = self._report.replay if self._report and not self._profiled else None
        return predict(variants, replayed) if replayed and variants else None

    def _is_base(self, ended: Ended) -> bool:
        """Whether its step is about that of the base's last run."""
        base = next(line for line in reversed(self._measured) if not line["changed"])
        far = abs(math.log(ended.step_s / base["step_s"])) if ended.step_s else math.inf
        return far < _ALIKE + _CLEARLY * math.hypot(ended.error, base["error"])

    def _drop_out_of_time(self, ended: Ended, name: str) -> bool:
        """Whether ``name`` was ended because the budget is spent. That says nothing of it, and is all that is noted."""
        is_spent = bool(ended.failure and self._measured and ended.wall_s >= self._left_s)
        if is_spent:
            self._add({"kind": "out of time", "wall_s": ended.wall_s})
            self._note(f"{name}: ended, because the budget of time is spent")
        return is_spent

    def _call(self, overrides: Overrides) -> Ended:
        assert self._run_self
        started_s = time.monotonic()
        try:
            return ended_of(self._run_self(overrides), time.monotonic() - started_s)
        except Exception as error:  # the caller's run failed, for whatever reason
            failure = f"{type(error).__name__}: {error}".strip(": ")
            return Ended((), failure, time.monotonic() - started_s, 0.0)

    def _launch(self, variants: Sequence[Variant], place: str, rules: Sequence[str], name: str) -> Ended:
        """Runs the job in a directory that, once the run ended well, lies among those that ``plan next`` reads."""
        command = self._request.command
        assert command
        words, environment = _words_of(variants), _environment_of(variants)
        folder = self._request.out / "running" / place
        folder.mkdir(parents=True, exist_ok=True)
        variables = command.variables(words, environment)
        log = folder / _LOG_NAME
        for _ in range(2):
            self._add({"kind": "begin", "run": int(place)})
            self._others.begin(words, environment, log, {})
            ended = run_job(command.put_in(words), variables, log, self._limits(), self._lock, self._others)
            if not ended.is_cut_off:
                break
        if not ended.failure and variants:
            failure = _find_unheeded(variants, self._base_log, log) or self._find_other_batch(ended)
            ended = replace(ended, failure=failure or self._find_early_end(ended, command.iterations))
        if rules:
            entries = ", ".join(map(_quoted, rules))
            write_texts({LABEL_NAME: f"label: {_quoted(name)}\nentries: [{entries}]\n"}, folder)
        for kind in ("failed", "runs"):  # of a tuning that was killed before it wrote the run down
            shutil.rmtree(self._request.out / kind / place, ignore_errors=True)
        target = self._request.out / ("failed" if ended.failure else "runs") / place
        target.parent.mkdir(exist_ok=True)
        folder.rename(target)
        return ended

    def _find_other_batch(self, ended: Ended) -> str:
        """Why its step cannot be compared with the base's: it is of other samples; empty where no log says so."""
        base, mine = self._measured[0].get("global_batch_size") if self._measured else None, ended.global_batch_size
        if base is None or mine is None or mine == base:
            return ""
        return f"its steps are of {mine} samples, the base's of {base}: state the global batch size"

    def _find_early_end(self, ended: Ended, asked: int) -> str:
        """Why it failed though no exit code says so: it broke off; empty where it ran as far as the base."""
        base = self._measured[0].get("iterations") if self._measured else None
        if not base or ended.iterations is None or ended.iterations >= _NEARLY_ALL * min(base, asked):
            return ""
        return f"it ended after {ended.iterations} iterations, the base after {base}, and its log says no error"

    def _limits(self) -> Limits:
        """Those of the base until it ran, then what it took, with much to spare."""
        request, ran = self._request, self._measured
        command, overran = request.command, ""
        assert command
        if short := command.shorten(command.iterations):
            overran = (
                f"it went on past {command.iterations} iterations, so {' '.join(short[:2])} does not reach it: write "
                f"{TEMPLATE} where its program takes overrides, or have its script add ${VARIABLE}"
            )
        if not ran:
            return Limits(request.patience_s, float("inf"), command.iterations, overran)
        quiet_s = max(_LEAST_QUIET_S, _QUIET_FACTOR * max(line["quiet_s"] for line in ran))
        run_s = max(_LEAST_QUIET_S, _RUN_FACTOR * max(line["wall_s"] for line in ran))
        return Limits(min(quiet_s, request.patience_s), min(run_s, self._left_s), command.iterations, overran)

    def _learn_from_capture(self) -> None:
        """Profiles and analyzes the base, if that was not done and is worth it: that predicts what is tried, and the
        entries of its plan are tried too."""
        if self._report is not None:
            return
        captures = self._captures
        if self._request.trace is not None:
            self._read_capture(self._request.trace, {})
        elif not captures and self._request.command and self._measured:
            is_worth_it = self._is_worth_a_capture(self._search().most_runs)
            if is_worth_it and find_nsys() is None:
                self._note(self._no_nsys)
            elif is_worth_it and self._can_capture("profiled"):
                self._profile(make_space(()), ())
        for line in captures:
            self._read_capture(Path(line["trace"]) if line["trace"] else None, line.get("changed", {}))

    def _has_moved(self, search: TrialSearch, is_over: bool) -> bool:
        """Whether what is kept is so far from what was profiled last that a new capture may have another plan."""
        request, kept = self._request, search.kept if search.model else ()
        is_possible = (
            self._report is not None
            and request.may_capture
            and not request.only_given
            and request.command is not None
            and find_nsys() is not None
            and len(self._captures) < _MOST_CAPTURES
            and len(self._runs) < (request.most_runs or len(self._runs) + 1)
        )
        if not is_possible or not any(kept) or search.space.describe(kept) == self._profiled:
            return False
        return self._is_elsewhere(search, kept, is_over) and self._can_capture("profiled again")

    @property
    def _captures(self) -> list[dict[str, Any]]:
        return [line for line in self._lines if line["kind"] == "profile"]

    def _is_worth_a_capture(self, most_runs: int) -> bool:
        """Whether one may be made, and so many runs follow that what it predicts of a space is worth one of them."""
        is_for_a_space, follow = self._request.only_given, most_runs - max(1, len(self._runs)) - 1
        return self._request.may_capture and (not is_for_a_space or follow >= _RUNS_BY_PREDICTIONS)

    def _can_capture(self, what: str) -> bool:
        """Whether the budget suffices for a capture and a run of what it shows, or several of a space; says so where it
        does not.

        A first capture is taken to last as long as a run.
        """
        count = _RUNS_BY_PREDICTIONS if self._request.only_given else 1
        takes_s = max((line["wall_s"] for line in self._captures), default=self._typical_s) + count * self._typical_s
        if not (is_affordable := takes_s <= self._left_s):
            runs = "a run" if count == 1 else f"{count} runs"
            self._note(f"not {what}: a capture and {runs} take {takes_s:.0f} s, more than is left")
        return is_affordable

    def _is_elsewhere(self, search: TrialSearch, kept: Choice, is_over: bool) -> bool:
        """Whether ``kept`` measured outside its prediction, or shortened the step by much and nothing else is left."""
        assert search.model
        ran = (choice for choice in search.measured if search.space.describe(choice) == self._profiled)
        profiled = next(ran, search.space.base)
        (gain,), (spread,) = search.model.gains_over(profiled, [kept])
        if is_over and gain > _ANOTHER_STEP:
            return True
        space = make_space((*self._given.settings, *self._planned))
        expected = [value.gain for value in space.values_of(kept) if value not in space.values_of(profiled)]
        logs = [(math.log1p(-each.low), math.log1p(-each.high)) for each in expected if each]
        least, most = (-sum(bounds) for bounds in zip((0.0, 0.0), *logs, strict=True))
        if len(logs) < len(expected):  # nothing was predicted of some
            return False
        return bool(gain + _CLEARLY * spread < least or gain - _CLEARLY * spread > most)

    def _read_capture(self, trace: Path | None, changed: Mapping[str, str]) -> None:
        """Analyzes the capture of a configuration that changes ``changed``: it predicts what is tried, and its plan's
        entries are tried too."""
        self._profiled = changed
        if trace is None or not trace.exists():
            return
        whose = f"the base with {', '.join(changed.values())}" if changed else "the base"
        self._say(f"analyzing the capture of {whose}")
        saved = (trace / RUN_CONFIG, trace.parent / RUN_CONFIG)
        config = next((path for path in saved if path.is_file()), None)
        logs = [trace] if trace.is_dir() and any(trace.glob("*.log")) else []
        try:
            report = analyze(trace, logs=logs, config=config, allowed=self._request.allowed)
        except ThreeWallsError as error:
            self._note(f"the capture of {whose} gives no plan and no predictions: {error}")
            return
        self._report = report
        if self._request.only_given:
            self._note("the base was profiled, which counts as a run; what its capture predicts is beside each run")
            return
        values = [value for setting in self._given.settings for value in setting.values]
        own = {core_name(key) for value in values for key in value.config}
        planned, left_out = list_planned(report, self._framework, own, is_called=self._request.command is None)
        self._planned = join_planned(self._planned, planned, changed)
        for reason in left_out:
            self._note(f"not tried: {reason}")
        if changed:
            self._note(f"profiled again: {whose}; {report.verdict.reason}")

    def _profile(self, space: Space, choice: Choice) -> None:
        """Captures a configuration and learns from it. Where there is no capture the reason is noted."""
        command = self._request.command
        assert command
        out = self._request.out.absolute() / "profiles"
        out.mkdir(exist_ok=True)
        changed, variants = space.describe(choice), space.values_of(choice)
        whose = ", ".join(changed.values()) or "the base"
        self._say(f"profiling {whose}")
        limits = replace(self._limits(), run_s=self._left_s, iterations=1 << 30)
        before = {*out.rglob("rank*.sqlite")}
        words = command.profiled(_words_of(variants), out, self._request.ranks, PROFILED_STEPS)
        log = out / f"profile{len(before) or ''}.log"
        how = {"out": str(out), "ranks": self._request.ranks, "steps": PROFILED_STEPS}
        self._others.begin(_words_of(variants), _environment_of(variants), log, how)
        variables = command.variables(_words_of(variants), _environment_of(variants))
        ended = run_job(words, variables, log, limits, self._lock, self._others)
        found = sorted({path.parent for path in {*out.rglob("rank*.sqlite")} - before})
        if not found and self._drop_out_of_time(ended, f"the capture of {whose}"):
            return
        if not found:
            self._note(f"{whose} could not be profiled ({ended.failure or 'no report was written'}); see {out}")
        trace = found[-1] if found else None
        if trace is not None and (config := out / RUN_CONFIG).is_file():
            config.replace(trace / RUN_CONFIG)  # the next capture writes its own
        self._add({"kind": "profile", "trace": str(trace or ""), "changed": changed, "wall_s": ended.wall_s})
        self._read_capture(trace, changed)

    def _note_doubts(self) -> None:
        for doubt in self._list_doubts():
            self._note(doubt)

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)
            self._say(text)

    def _write(self, search: TrialSearch) -> Tuned:
        """Writes page, results and overrides from the journal alone."""
        tuned = conclude(search, self._runs, tuple(self._notes), self.end, self._framework)
        write_texts(render_tuned(tuned), self._request.out)
        return tuned


def _as_trial(line: Mapping[str, Any], space: Space) -> TriedChoice | None:
    """A run of the journal; None where the space no longer has what it changed."""
    numbers = {
        (setting.name, variant.label): number
        for setting in space.settings
        for number, variant in enumerate(setting.values, start=1)
    }
    changed = {name: numbers.get((name, label)) for name, label in line["changed"].items()}
    if None in changed.values():
        return None
    choice = tuple(changed.get(setting.name) or BASE for setting in space.settings)
    memory = MemoryUse(*line["memory"]) if line.get("memory") else None  # which journals of old did not have
    return TriedChoice(choice, line["step_s"], line["error"], line["failure"], memory, line.get("limit_bytes"))


def _find_unheeded(variants: Sequence[Variant], base: Path, log: Path) -> str:
    """Why a run was not of ``variants``: its log has the value that the base's has; empty where no log says so."""
    before, now = _read_settings(base), _read_settings(log)
    for name, wanted in ((logged_name(key), value) for each in variants for key, value in each.config.items()):
        if name not in before or name not in now:
            continue
        found = now[name].value
        if is_same(found, before[name].value) and not is_same(found, wanted):
            return f"{name} is {write_value(found)} in its log, as in the base's: {_UNHEEDED}"
    return ""


def _read_settings(log: Path) -> dict[str, ConfigValue]:
    """The settings that ``log`` prints; none where there is no such file."""
    found = merge_sources(_read_sources(log)).values
    return {name: each for name, each in found.items() if not each.source.startswith("derived")}


def _read_sources(log: Path) -> list[SourceSettings]:
    return read_log_settings(read_logs([log])) if log.is_file() else []


def _words_of(variants: Sequence[Variant]) -> list[str]:
    return [word for each in variants for word in each.words]


def _environment_of(variants: Sequence[Variant]) -> dict[str, str]:
    return {key: text for each in variants for key, text in each.environment.items()}


def _as_set(key: str, value: ConfigData) -> str:
    """A setting as ``--set`` reads it."""
    if not key.startswith("env."):
        return f"{key}={write_value(value)}"
    text = str(value)
    return f"{VARIABLE_PREFIX}{key.removeprefix('env.')}={text if text.isdecimal() else write_value(text)}"


def _quoted(text: str) -> str:
    return json.dumps(text)  # which is YAML


def tune(
    run: Callable[[Overrides], Log],
    *,
    space: Mapping[str, Sequence[SpaceValue]] | None = None,
    trace: str | Path | None = None,
    out: str | Path | None = None,
    allowed: Collection[str] = (),
    budget_s: float = float("inf"),
    most_runs: int | None = None,
    worth: float = 0.01,
    say: Say = lambda _: None,
) -> Tuned:
    """Finds the overrides with which a job is fastest. ``run`` runs it, shortly and without saving, with overrides.

    - ``run``: called with overrides by name, none for the base; gives a path to the run's training log, the log's text,
      or the length of every step in seconds. A run that raises, or gives too few steps, counts as failed.
    - ``space``: settings with the values to try besides the base's.
    - ``trace``: a capture of the base; the entries of its plan are tried too, with Megatron Core's names of settings.
    - ``out``: a directory for journal, page and results, from which a tuning that was interrupted goes on.
    - ``allowed``: applicabilities of entries to try in addition to execution-only ones.
    - ``budget_s``, ``most_runs``: when to stop; a third of the runs of a sweep of ``space`` unless stated.
    - ``worth``: the share of a step that matters.

    Raises UsageError where there is nothing to try.
    """
    if not space and trace is None:
        raise UsageError("tune: expected a space or a trace, found neither")
    with TemporaryDirectory(prefix="three-walls-tune-") as temporary:
        directory = Path(out) if out is not None else Path(temporary)
        request = TuneRequest(
            directory,
            given=freeze_space(space or {}),
            only_given=trace is None,
            allowed=tuple(allowed),
            budget_s=budget_s,
            most_runs=most_runs,
            worth=worth,
            trace=None if trace is None else Path(trace),
        )
        with journal.locked(directory, say) as lock:
            return Tuning(request, say, lock, run).run()
