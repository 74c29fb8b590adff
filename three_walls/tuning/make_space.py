"""What to try: the entries of a run's plan, and the settings that the user names."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from three_walls.advice.answer_what_if import ReplayedRun
from three_walls.advice.finding import REPLAYED, Finding, PlannedEdit, PlanStep
from three_walls.bridge.check_overrides import find_problems
from three_walls.bridge.constraints import constraint_table
from three_walls.bridge.render_bridge import CHECK_SECTION
from three_walls.bridge.render_overrides import RELEASE_UNKNOWN, spell
from three_walls.capture.capture_commands import setting_words
from three_walls.capture.capture_guide import BRIDGE, MEGATRON_LM
from three_walls.lib.errors import InputError, UsageError
from three_walls.lib.expressions import list_names, parse_expression
from three_walls.lib.files import read_text_file
from three_walls.lib.hydra import read_override, write_value
from three_walls.lib.load_documents import suggest
from three_walls.lib.plain_data import ConfigData
from three_walls.lib.shell import is_variable
from three_walls.megatron.settings.launchers import find_program
from three_walls.megatron.settings.merge_settings import is_same
from three_walls.megatron.settings.option_words import is_flag, read_command_line
from three_walls.megatron.settings.run_config import RunConfig
from three_walls.report.report import LiveReport
from three_walls.tables.config_keys import config_keys, keys_by_flag, keys_by_path
from three_walls.tables.usual_changes import usual_changes
from three_walls.tuning.trials import Choice, Clashes, Edit, ExpectedGain, Growth, Space, Tunable, Variant
from three_walls.tuning.tuned_command import TEMPLATE

SpaceValue = ConfigData | Mapping[str, ConfigData]
"""A value of a setting, or it with what is set beside it, by name."""
_NOTHING_KNOWN = RunConfig()
_NAME = re.compile(r"[^\s=]+")
_ALONE = (str, bytes, Mapping)
"""A value of these types is one, not several."""
_USUALLY = 0.5
"""Of what edits did in the mean: so much is expected of the same edit on another job before it ran."""
_SAME_PER_SAMPLE = 0.1
"""Of the logarithm of activations: how far they are from growing with the micro-batch."""
_TRUTH_WORDS = ("on", "off", "yes", "no")
"""What YAML 1.1 reads as true or false, and Hydra and argparse as text."""
_FEW_RUNS = 6
"""Fewer find nothing."""
_MOST_RUNS = 120
_LARGE = 0.03
"""A logarithm of a step: values that change it by less are not predicted in pairs."""
_RUNS_PER_ENTRY = 4
"""Of a plan: the entry, two bases around it, and a repetition."""
_OTHERS = {BRIDGE: "Megatron-LM", MEGATRON_LM: "Megatron-Bridge"}
"""Framework -> how notes on overrides begin that are for the other alone."""
_REMARKS = (RELEASE_UNKNOWN, f"Megatron-Bridge: {CHECK_SECTION}")
"""How those begin that keep no line from being added."""


def read_space(path: Path) -> dict[str, list[SpaceValue]]:
    """The settings and values of a YAML file. Raises InputError for one that holds something else, or one twice."""
    text = read_text_file(path, "a YAML file of settings, each with the values to try")
    try:
        given, written = yaml.safe_load(text), yaml.compose(text, yaml.SafeLoader)
        scalars = [each for each in yaml.parse(text, yaml.SafeLoader) if isinstance(each, yaml.ScalarEvent)]
    except yaml.YAMLError as error:
        raise InputError(f"{path}: expected YAML ({' '.join(str(error).split())})") from error
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"{path}: expected settings with lists of values, as `micro_batch_size: [1, 2]`")
    if bare := [each.value for each in scalars if each.implicit[0] and each.value.lower() in _TRUTH_WORDS]:
        raise InputError(f'{path}: YAML reads {bare[0]} as a truth value: write true or false, or "{bare[0]}" for text')
    try:
        frozen = freeze_space(given)
    except UsageError as error:
        raise InputError(f"{path}: {error}") from error
    assert written
    counts = Counter(core_name(key.value) for key, _ in written.value)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InputError(f"{path}: expected each setting once, found {twice[0]} again, in this or another spelling")
    own = {core_name(name) for name in frozen}
    for name, values in frozen.items():
        parts = [split_value(name, value) for value in values]
        if not parts or not all(map(_is_plain, itertools.chain(*(part.values() for part in parts)))):
            raise InputError(
                f"{path}: {name}: expected values to try (text, numbers, true, false, null, lists of these), or such a "
                f"value with what goes along, as {{{name}: 1, other: 2}}; found {given.get(name, values)}"
            )
        beside = {key for part in parts for key in part} - {name}
        for key in sorted({name, *beside}):
            if not _NAME.fullmatch(key) or (key.startswith("env.") and not is_variable(key.removeprefix("env."))):
                raise InputError(f"{path}: expected the name of a setting, a flag, or env.NAME, found {key!r}")
        if twice := [key for key in sorted(beside) if core_name(key) in own]:
            raise InputError(f"{path}: {name}: {twice[0]} goes along with it, and is a setting of its own")
    return frozen


def freeze_space(given: Mapping[Any, Any]) -> dict[str, list[SpaceValue]]:
    """Settings with their values as YAML, JSON or a caller has them, each value once; one alone needs no list.

    Raises UsageError for a value of several settings without the one that it is of.
    """
    lists: dict[str, list[Any]] = {
        str(name): [values] if isinstance(values, _ALONE) or not isinstance(values, Collection) else [*values]
        for name, values in given.items()
    }
    frozen = {name: [_freeze(each) for each in lists[name]] for name in lists}
    if bad := [name for name, values in frozen.items() if any(name not in split_value(name, each) for each in values)]:
        raise UsageError(f"{bad[0]}: braces have to hold its own value, too, as {{{bad[0]}: 1, other: 2}}")
    return {name: list({repr(each): each for each in values}.values()) for name, values in frozen.items()}


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _freeze(value[key]) for key in sorted(value, key=str)}
    return tuple(value) if isinstance(value, list) else value


def split_value(name: str, value: SpaceValue) -> Mapping[str, ConfigData]:
    """All that ``value`` of the setting ``name`` sets."""
    return value if isinstance(value, Mapping) else {name: value}


def _is_plain(value: object) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    is_number = all(math.isfinite(part) for part in parts if isinstance(part, float))
    return is_number and all(part is None or isinstance(part, str | int | float) for part in parts)


class Given(NamedTuple):
    """What the user's space holds."""

    settings: tuple[Tunable, ...]
    sweep: int
    """The runs of a sweep: the product of the values."""
    unknown: tuple[str, ...]
    """The settings of which it is not known which value is the base's."""
    left_out: tuple[str, ...]
    """What cannot be tried by adding to the command, and why."""


def list_given(
    given: Mapping[str, Sequence[SpaceValue]],
    framework: str | None,
    command: Sequence[str] | None,
    found: Mapping[str, ConfigData] = MappingProxyType({}),
    config: RunConfig = _NOTHING_KNOWN,
) -> Given:
    """The settings that the user names, and how many runs a sweep of them takes.

    ``config``: what is known of the base, for which values are spelled. A value that ``command`` states is the base's,
    or else the one that is ``found``, in its log or its environment. Where neither says it, a setting with several
    values is taken to have the base's among them, so that the sweep is not overrated. A flag that the command lacks is
    off. Without a command all are values besides the base's.
    """
    settings, left_out, unknown, sweep = [], [], [], 1
    parts = {name: [split_value(name, value) for value in values] for name, values in given.items()}
    named = [(key, each) for values in parts.values() for value in values for key, each in value.items()]
    tried = {key: [each for other, each in named if other == key] for key, _ in named}
    known = {**found, **_read_stated(tried, framework, command or ())}
    for name, values in parts.items():
        variants = [
            {key: _make_variant(key, each, framework, command or (), config) for key, each in value.items()}
            for value in values
        ]
        silent = [
            [key for key, each in variant.items() if command is not None and not (each.words or each.environment)]
            for variant in variants
        ]
        for value, keys in zip(values, silent, strict=True):
            known = {key: value[key] for key in keys} | known  # a flag that the command lacks is off
        bases = [all(key in known and _is_value(known[key], each) for key, each in value.items()) for value in values]
        lost = [
            not base and any(not _is_value(known[key], value[key]) for key in keys)
            for base, value, keys in zip(bases, values, silent, strict=True)
        ]
        is_other = [not (base or each) for base, each in zip(bases, lost, strict=True)]
        joined = [_join(variant.values()) for variant in itertools.compress(variants, is_other)]
        usual = usual_changes()
        others = tuple(
            replace(
                each,
                activations=_expect_activations(value, known),
                usual=_USUALLY * usual.mean(core_name(name), known[name], value[name]) if name in known else 0.0,
            )
            for each, value in zip(joined, itertools.compress(values, is_other), strict=True)
        )
        usual_ratio = usual.ratio(core_name(name))
        settings.append(Tunable(name, others, name, usual_ratio, _place([each[name] for each in values], is_other)))
        is_known = command is None or len(values) == 1 or name in known
        unknown += [] if is_known else [name]
        labels = [label_of(name, value) for value in itertools.compress(given[name], lost)]
        left_out += [f"{label}: its flag would have to be taken away from the command" for label in labels]
        sweep *= sum(is_other) + is_known
    return Given(tuple(each for each in settings if each.values), sweep, tuple(unknown), tuple(left_out))


def find_unsettled(unknown: tuple[str, ...], runs: Sequence[tuple[tuple[str, ...], bool]]) -> tuple[str, ...]:
    """The settings whose first values are run next, to see whether these are the base's; empty where that is settled.

    ``runs``: the settings of those before, and whether their steps were the base's: where they were not, halves follow.
    """
    left = [runs[0][0] if runs else unknown]
    for names, is_base in runs:
        left.pop()
        half = (len(names) + 1) // 2
        left += [] if is_base or len(names) == 1 else [names[half:], names[:half]]
    return left[-1] if left else ()


def _place(values: Sequence[ConfigData], is_other: Sequence[bool]) -> tuple[int, ...]:
    """How many places each other number lies above the base's, which is taken to be below all where it is not known.

    Empty unless all are numbers.
    """
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        return ()
    places = [sorted(numbers).index(number) for number in numbers]
    base = -1 if all(is_other) else places[is_other.index(False)]
    return tuple(place - base for place in itertools.compress(places, is_other))


def _expect_activations(config: Mapping[str, ConfigData], base: Mapping[str, ConfigData]) -> Growth | None:
    """How ``config`` changes those of a job with ``base``: they grow with the micro-batch, and as the other settings
    usually make them. None where that is known of no setting."""
    growths = [_grow(core_name(name), base[name], value) for name, value in config.items() if name in base]
    known = [growth for growth in growths if growth]
    return Growth.add(known) if known else None


def _grow(name: str, before: ConfigData, after: ConfigData) -> Growth | None:
    if name != "micro_batch_size":
        growth = usual_changes().growth(name, before, after)
        return growth and Growth(*growth)
    try:
        return Growth(math.log(float(str(after)) / float(str(before))), _SAME_PER_SAMPLE)
    except (ValueError, ZeroDivisionError):
        return None


def label_of(name: str, value: SpaceValue) -> str:
    """How a value of the user's space is shown."""
    return " ".join(f"{key}={write_value(each)}" for key, each in split_value(name, value).items())


def _join(parts: Collection[Variant]) -> Variant:
    """What sets all ``parts``."""
    return Variant(
        " ".join(part.label for part in parts),
        tuple(word for part in parts for word in part.words),
        {name: text for part in parts for name, text in part.environment.items()},
        config={name: value for part in parts for name, value in part.config.items()},
    )


def _make_variant(
    name: str,
    value: ConfigData,
    framework: str | None,
    command: Sequence[str] = (),
    config: RunConfig = _NOTHING_KNOWN,
) -> Variant:
    label = label_of(name, value)
    if name.startswith("env."):
        if value is None or isinstance(value, tuple):
            raise UsageError(f"{name}: expected text or a number for a variable, found {write_value(value)}")
        text = value if isinstance(value, str) else write_value(value)
        return Variant(label, environment={name.removeprefix("env."): text}, config={name: text})
    spelling = config_keys().keys[name].megatron_lm if name in config_keys().keys else None
    if framework == MEGATRON_LM and spelling and (value is None or isinstance(value, bool)):
        flag = spelling.flag if value else spelling.negated_flag if value is False else None
        return Variant(label, (flag,) if flag else (), config={name: value})
    if framework is not None and name in config_keys().keys and (words := setting_words({name: value}, framework)):
        if framework == BRIDGE:
            edit = PlannedEdit(name, None, value, "config", changes_numerics=False)
            words = _spell_as_stated(spell([edit], config).bridge or words, name, command)
        return Variant(label, words, config={name: value})
    if framework == BRIDGE and (former := f"model.{name}") in keys_by_path():
        return Variant(label, (f"{former}={write_value(value)}",), config={name: value})
    if name.startswith("-"):
        values = value if isinstance(value, tuple) else () if value is True else (value,)
        words = () if value is False or value is None else (name, *map(str, values))
        return Variant(label, words, config={name: value})
    return Variant(label, (label,), config={name: value})


def _spell_as_stated(words: tuple[str, ...], name: str, command: Sequence[str]) -> tuple[str, ...]:
    """``words`` with the path by which ``command`` states the setting, where Megatron-Bridge has another one for it.

    A recipe without an object for what overlaps takes no override of a field of it.
    """
    spelling = config_keys().keys[name].bridge
    stated = {word.lstrip("+").partition("=")[0] for word in command if "=" in word}
    other = next((path for path in (spelling.also_read if spelling else ()) if path in stated), None)
    is_alone = other is not None and len(words) == 1 and not stated.intersection(spelling.paths if spelling else ())
    return tuple(f"{other}={word.partition('=')[2]}" for word in words) if is_alone else words


def _read_stated(
    given: Mapping[str, Sequence[ConfigData]], framework: str | None, command: Sequence[str]
) -> dict[str, ConfigData]:
    """The values that ``command`` gives: of Megatron Core's settings in any spelling, of others the last, as text."""
    stated: dict[str, ConfigData] = {}
    if framework is not None:
        read = read_command_line(command).values
        stated = {name: read[name].value for name in given if name in read and read[name].is_stated}
    arguments = find_program(command).arguments
    for name in given.keys() - stated.keys():
        is_variable = name.startswith("env.")
        key = name.removeprefix("env.") if is_variable else _name_word(name, given[name], framework)
        is_list = any(isinstance(value, tuple) for value in given[name])
        words = command if is_variable else arguments
        for place, word in enumerate(words, start=1):
            named, equals, text = word.partition("=")
            if named.lstrip("+") == key and (equals or not is_variable):
                values = tuple(itertools.takewhile(_is_plain_word, words[place:]))
                stated[name] = text if equals else values if is_list else next(iter(values), True)
    return stated


def _is_plain_word(word: str) -> bool:
    return not is_flag(word) and word != TEMPLATE


def _name_word(name: str, values: Sequence[ConfigData], framework: str | None) -> str:
    """The flag or key with which a setting is set."""
    words = (word for value in values for word in _make_variant(name, value, framework).words)
    return next(words, name).partition("=")[0]


def _is_value(found: ConfigData, value: ConfigData) -> bool:
    """Whether what a command or a log says is ``value``. What a command says may be text."""
    if isinstance(found, tuple) and isinstance(value, tuple):
        return tuple(map(str, found)) == tuple(map(str, value))
    if not isinstance(found, str):
        return is_same(found, value)
    read = read_override(f"x={found}")
    return found in (str(value), write_value(value)) or (len(read) == 1 and is_same(read[0].value, value))


def core_name(name: str) -> str:
    """Megatron Core's name of the setting that a space names, in whatever spelling; ``name`` where there is none."""
    paths = keys_by_path()
    key = keys_by_flag().get(name) or paths.get(name.lstrip("+")) or paths.get(f"model.{name}")  # a former name
    return key.name if key else name


def list_strange(given: Mapping[str, Sequence[SpaceValue]]) -> tuple[str, ...]:
    """The names of a space that are no setting of Megatron's, nor a path, a flag or a variable: with what is close."""
    values = ((name, value) for name, each in given.items() for value in each)
    names = dict.fromkeys(key for name, value in values for key in split_value(name, value))
    known = config_keys().keys
    strange = (name for name in names if "." not in name and not name.startswith("-") and core_name(name) not in known)
    return tuple(f"{name}{suggest(name, known)}" for name in strange)


def logged_name(name: str) -> str:
    """The name by which a log has the setting ``name`` with the same values; ``name`` where there is none."""
    key = keys_by_flag().get(name)
    is_negated = key is not None and (key.megatron_lm is None or key.megatron_lm.flag != name)
    return name if is_negated else core_name(name)


def list_planned(
    report: LiveReport, framework: str | None, given: Collection[str] = (), is_called: bool = False
) -> tuple[tuple[Tunable, ...], tuple[str, ...]]:
    """The entries of the plan of ``report`` as settings, and why some are not tried: none by adding to the command.

    ``given``: Megatron Core's names of what the user's space has, which no entry changes, too. ``is_called``: a caller
    runs the job, and takes every setting by its name.
    """
    findings = {finding.rule: finding for finding in report.findings}
    harmless = (_OTHERS.get(framework or "", "Megatron-"), *_REMARKS)
    settings, left_out = [], []
    for step in report.plan:
        spelled = spell(step.edits, report.config)
        config = {edit.key if edit.kind == "config" else f"env.{edit.key}": edit.to for edit in step.edits}
        named = {key: value for key, value in config.items() if not key.startswith("env.")}
        flags = tuple(word for line in spelled.megatron_lm for word in line.split(" "))
        words = spelled.bridge if framework == BRIDGE else flags
        words = tuple(f"{key}={write_value(value)}" for key, value in named.items()) if is_called else words
        by_hand = [note for note in spelled.notes if not (is_called or note.startswith(harmless))]
        if not step.edits:
            left_out.append(f"{step.rule}: it has no settings")
        elif shared := [key for key in config if key in given]:
            left_out.append(f"{step.rule}: the space has {', '.join(shared)}")
        elif named and not is_called and framework not in (BRIDGE, MEGATRON_LM):
            left_out.append(f"{step.rule}: the command is neither Megatron-Bridge's nor Megatron-LM's")
        elif by_hand:
            left_out.append(f"{step.rule}: {'; '.join(by_hand)}")
        else:
            gain = _expect(step, findings.get(step.rule), report)
            variant = Variant(step.finding.title, words, dict(spelled.env), gain, config, step.needs)
            base = {name: each.value for name, each in report.config.values.items()}
            variant = replace(variant, activations=_expect_activations(config, base))
            settings.append(Tunable(step.rule, (variant,), kind=step.finding.lever))
    kept = {setting.name for setting in settings}
    possible = tuple(each for each in settings if kept.issuperset(each.values[0].needs))
    return possible, tuple(left_out)


def join_planned(
    planned: tuple[Tunable, ...], later: tuple[Tunable, ...], kept: Mapping[str, str]
) -> tuple[Tunable, ...]:
    """``planned`` with the entries of the plan of a run that had the values ``kept`` (settings to labels).

    An entry of a rule that was kept goes on from its value: from micro-batches of 2 to those of 4.
    """
    joined = {setting.name: setting for setting in planned}
    for setting in later:
        known = joined.get(setting.name)
        if known is None:
            joined[setting.name] = setting
            continue
        (value,) = setting.values
        first = next((each for each in known.values if each.label == kept.get(setting.name)), Variant(""))
        config, gain = {**first.config, **value.config}, value.gain
        if gain and first.gain:
            pairs = zip(astuple(first.gain), astuple(gain), strict=True)
            gain = ExpectedGain(*(1 - (1 - before) * (1 - after) for before, after in pairs))
        label = value.label
        while label in {each.label for each in known.values}:
            label += ", further"
        further = replace(
            value,
            label=label,
            words=(*first.words, *value.words),
            environment={**first.environment, **value.environment},
            config=config,
            gain=gain,
            activations=value.activations and first.activations and Growth.add([first.activations, value.activations]),
        )
        if config not in [each.config for each in known.values]:
            joined[setting.name] = replace(known, values=(*known.values, further))
    return tuple(joined.values())


def _expect(step: PlanStep, alone: Finding | None, report: LiveReport) -> ExpectedGain | None:
    """The gain of an entry: alone on the base where a replay gives that, else on what the earlier entries leave."""
    step_ns, gain = report.verdict.replayed_step_ns or report.verdict.step_ns, step.gain_ns
    is_same = alone is not None and alone.edits == step.edits  # the plan may have chosen another value
    if alone and is_same and alone.gain_ns.basis == REPLAYED and not step.needs:
        gain = alone.gain_ns
    elif step.step_after_likely_ns is not None and gain.likely is not None:
        step_ns = step.step_after_likely_ns + gain.likely
    if not step_ns or gain.low is None or gain.likely is None or gain.high is None:
        return None
    low, likely, high = (min(0.9, ns / step_ns) for ns in (gain.low, gain.likely, gain.high))
    return ExpectedGain(low, likely, high)


def predict_space(space: Space, profiled: Choice, run: ReplayedRun) -> Space:
    """``space`` with what is predicted of values and pairs of them on the step of ``run``, which had ``profiled``.

    What the plan predicts stays, and so does what is known of settings that ``profiled`` changes.
    """
    settings, together = [*space.settings], dict(space.together)
    steps: dict[Edit, float] = {}
    for place, setting in enumerate(space.settings):
        gains = [] if profiled[place] else [predict([value], run) for value in setting.values]
        steps |= {(place, number): math.log1p(-gain.likely) for number, gain in enumerate(gains, start=1) if gain}
        if any(gains):
            paired = zip(setting.values, gains, strict=True)
            values = tuple(replace(value, gain=value.gain or gain) for value, gain in paired)
            settings[place] = replace(setting, values=values, kind=setting.kind or setting.name)
    for one, other in itertools.combinations(steps, 2):
        if one[0] != other[0]:
            pair = [space.settings[place].values[number - 1] for place, number in (one, other)]
            is_large = min(abs(steps[one]), abs(steps[other])) > _LARGE
            both = predict(pair, run) if is_large else None
            together[frozenset((one, other))] = math.log1p(-both.likely) - steps[one] - steps[other] if both else 0.0
    return replace(space, settings=tuple(settings), together=together)


def predict(values: Sequence[Variant], run: ReplayedRun) -> ExpectedGain | None:
    """The gain of ``values`` together on the step of ``run``; None where nothing is predicted of one of them."""
    settings = {core_name(key): each for value in values for key, each in value.config.items()}
    try:
        answer = run.with_edits(settings)
    except UsageError:  # a setting that three-walls does not know
        return None
    if answer.step is None or answer.after is None:
        return None
    ends_ns = answer.after.high_ns, answer.after.likely_ns, answer.after.low_ns
    return ExpectedGain(*(min(0.9, 1 - ns / answer.step.likely_ns) for ns in ends_ns))


def find_clashes(settings: Sequence[Tunable], config: RunConfig) -> Clashes:
    """Values, and pairs of values, that Megatron-Bridge refuses on a base of ``config``.

    What it refuses of a value beside every other value counts only where that needs other sizes of the model or the
    layout: the job's script may set what else it needs.
    """
    clashes = set()
    alone = {
        (place, number): {name for name in _list_problems((value,), config) if _needs_sizes(name)}
        for place, setting in enumerate(settings)
        for number, value in enumerate(setting.values, start=1)
    }
    for (place, setting), (other_place, other) in itertools.combinations(enumerate(settings), 2):
        rows = [Variant(""), *setting.values]
        columns = [Variant(""), *other.values]
        table = [[_list_problems((row, column), config) for column in columns] for row in rows]
        for (number, row), (other_number, column) in itertools.product(
            enumerate(table), enumerate(zip(*table, strict=True))
        ):
            always = frozenset.intersection(*row) | frozenset.intersection(*column)
            for edit in {(place, number), (other_place, other_number)} & alone.keys():
                alone[edit] &= row[other_number]
            if row[other_number] - always:
                clashes.add(frozenset(((place, number), (other_place, other_number))))
    return frozenset(clashes | {frozenset({edit}) for edit, names in alone.items() if names})


def _needs_sizes(name: str) -> bool:
    """Whether the constraint ``name`` needs other numbers, and nothing else."""
    constraint = constraint_table().constraints.get(name)
    if constraint is None or "None" in constraint.needs:  # that something is set, or is not, is no size
        return False
    keys = [config_keys().keys.get(each) for each in list_names(parse_expression(constraint.needs))]
    return bool(keys) and all(key is not None and key.type == "int" for key in keys)


def _list_problems(variants: Sequence[Variant], config: RunConfig) -> frozenset[str]:
    """Names of what a release refuses of ``variants`` together."""
    edits = []
    for name, value in (item for each in variants for item in each.config.items()):
        kind, key = ("env", name.removeprefix("env.")) if name.startswith("env.") else ("config", core_name(name))
        if kind == "env" or key in config_keys().keys:
            edits.append(PlannedEdit(key, config.get(key), value, kind, changes_numerics=False))
    return frozenset(note.name for note in find_problems(edits, config)) if edits else frozenset()


def make_space(settings: tuple[Tunable, ...], sweep: int | None = None) -> Space:
    """The space of ``settings``. ``sweep``: where the base's values are among them; else each has one of its own."""
    sweep = sweep or math.prod(len(setting.values) + 1 for setting in settings)
    return Space(settings, sweep, together=dict(_count_twice(settings)))


def _count_twice(settings: Sequence[Tunable]) -> Iterator[tuple[frozenset[Edit], float]]:
    """What values that usually save the same time save less together."""
    overlap = usual_changes().overlap
    mine = [(place, each) for place, each in enumerate(settings) if core_name(each.name) in overlap.settings]
    for (place, one), (other_place, other) in itertools.combinations(mine, 2):
        for (number, value), (its, another) in itertools.product(enumerate(one.values, 1), enumerate(other.values, 1)):
            if (saved := min(-value.usual, -another.usual)) > 0:
                yield frozenset(((place, number), (other_place, its))), overlap.ratio * saved


def most_runs_in(space: Space, is_given: bool) -> int:
    """How many runs a search makes: of what the user gave a third of a sweep, of a plan a few per entry. Of the base
    alone two, of which the first may break off."""
    count = sum(len(setting.values) for setting in space.settings)
    if is_given:
        return min(max(space.sweep // 3, min(_FEW_RUNS, max(2, space.sweep))), max(_MOST_RUNS, 2 * count))
    return _FEW_RUNS + _RUNS_PER_ENTRY * count
