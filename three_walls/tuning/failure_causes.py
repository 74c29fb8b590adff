"""Why runs failed, and how likely a configuration fails for the same reasons.

A cause is a value, two or three together, a value beside whatever another setting is changed to, or beside one of the
base's (which may have to change with it), a configuration as a whole, or chance. Any of them explains a failure, unless
a run had it and did not fail; one that explains several is likelier than one for each. What the job said last tells
which are meant: Megatron's errors name the settings that do not go together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from three_walls.lib.load_documents import Pattern, Text, load_table
from three_walls.lib.resources import TABLES_DIR
from three_walls.tuning.trials import BASE, Choice, Edit, Tunable

Array = npt.NDArray[np.float64]
Cause = frozenset[Edit]

_BROKEN = 0.05
"""Odds that a value fails whatever is beside it."""
_TOGETHER = (1.0, 0.4, 0.15)
"""The same of one value, of two or three together, as shares of :data:`_BROKEN`."""
_BESIDE_ANY = 0.15
"""The same of a value beside whatever another setting is changed to."""
_NEEDS_ANOTHER = 0.15
"""The same of a value beside one of the base's."""
_BY_CHANCE, _AS_A_WHOLE = 0.01, 0.005
"""Odds that a run fails by chance, and that its configuration fails for a reason of its own."""
_BY_MACHINE = 0.4, 0.1
"""The first if its error is the machine's; and if several are: one cause would say the same each time."""
_UNNAMED = 0.05
"""How likely an error names a setting that is not in its cause."""
_LEFT_OUT = 0.03
"""How likely an error that names several settings leaves one of its cause out."""
_MOST_EXPLANATIONS = 100
"""Sets of causes that are kept, the likeliest: with 1,000 as many searches end near the best."""
_STEM = 8
"""Letters by which a word of an error is that of a setting: recomputation and recompute_granularity."""
_COMMON = {"cuda", "size", "type", "impl", "model", "fusion"}
"""Words of settings that errors use of anything."""
_NOWHERE = -1
"""The place of chance, which is in no configuration."""
_CHANGED = -1
"""Stands for whatever number but the base's."""


class FailureCauses:
    """Sets of causes that explain every failure, each with its share of what is likely."""

    def __init__(
        self, settings: Sequence[Tunable], failures: Mapping[Choice, Sequence[str]], harmless: Sequence[Choice]
    ) -> None:
        """``failures``: configurations that failed, with what each of their runs said; ``harmless``: those that ran."""
        self._several = [len(setting.values) > 1 for setting in settings]
        ran = [self._list_edits(choice) for choice in harmless]
        likely: dict[frozenset[Cause], float] = {frozenset(): 1.0}
        by_machine = _BY_MACHINE[sum(map(is_of_machine, itertools.chain(*failures.values()))) > 1]
        for number, (choice, said) in enumerate(sorted(failures.items())):
            named, whole = find_named(settings, said[-1]), self._list_edits(choice)
            odds = {cause: share for cause, share in _list_causes(whole) if not any(map(cause.issubset, ran))}
            chance = math.prod(by_machine if is_of_machine(each) else _BY_CHANCE for each in said)
            odds[frozenset([(_NOWHERE, number)])] = chance
            named_share = {cause: _share_named(cause, named, whole) for cause in odds}
            further: dict[frozenset[Cause], float] = {}
            for causes, share in likely.items():
                known = [named_share[cause] for cause in causes if cause <= whole]
                if known:
                    further[causes] = share * max(known)
                    continue
                for cause in odds:
                    further[causes | {cause}] = share * odds[cause] * named_share[cause]
            ordered = sorted(further.items(), key=lambda each: (-each[1], sorted(map(sorted, each[0]))))
            likely = {causes: share / ordered[0][1] for causes, share in ordered[:_MOST_EXPLANATIONS]}
        self._causes = sorted({cause for causes in likely for cause in causes}, key=sorted)
        self._has = np.array([[cause in causes for cause in self._causes] for causes in likely], dtype=float)
        self._shares = np.array([*likely.values()]) / sum(likely.values())

    def chances(self, choices: Sequence[Choice]) -> Array:
        """How likely none of the causes is in each of ``choices``."""
        edits = [self._list_edits(choice) for choice in choices]
        holds = np.array([[cause <= each for each in edits] for cause in self._causes], dtype=float)
        fails = self._has @ holds.reshape(len(self._causes), len(choices)) > 0
        chances: Array = self._shares @ ~fails
        return chances

    def _list_edits(self, choice: Choice) -> Cause:
        """Its values, and that a setting is changed, of those that have several others."""
        changed = ((place, _CHANGED) for place, number in enumerate(choice) if number and self._several[place])
        return frozenset([*enumerate(choice), *changed])


@dataclass(frozen=True, slots=True)
class MachineError:
    """A text by which an error shows that the machine caused it."""

    pattern: Pattern
    reason: Text


@dataclass(frozen=True, slots=True)
class MachineErrors:
    """``tables/machine-errors.yaml``."""

    errors: tuple[MachineError, ...]


@cache
def machine_errors() -> tuple[MachineError, ...]:
    """What ships with the program."""
    return load_table(TABLES_DIR / "machine-errors.yaml", MachineErrors).errors


def is_of_machine(said: str) -> bool:
    """Whether the machine caused the error ``said``."""
    return any(re.search(error.pattern, said) for error in machine_errors())


def _list_causes(whole: Cause) -> Iterator[tuple[Cause, float]]:
    """What may be the cause in a configuration that failed, with its odds."""
    edits = sorted(edit for edit in whole if edit[1] not in (BASE, _CHANGED))
    for count, share in enumerate(_TOGETHER, start=1):
        yield from ((frozenset(part), share * _BROKEN) for part in itertools.combinations(edits, count))
    for edit, other in itertools.product(edits, sorted(whole.difference(edits))):
        if edit[0] != other[0]:
            yield frozenset((edit, other)), (_BESIDE_ANY if other[1] == _CHANGED else _NEEDS_ANOTHER) * _BROKEN
    yield whole, _AS_A_WHOLE


def _share_named(cause: Cause, named: set[int], whole: Cause) -> float:
    """How likely an error that names ``named`` is of ``cause``. What fails by chance names none."""
    places = {place for place, _ in cause}
    if not named:
        return 1.0
    if cause == whole or not named <= places:
        return _UNNAMED
    return 1.0 if places == named or len(named) == 1 else _LEFT_OUT


def find_named(settings: Sequence[Tunable], said: str) -> set[int]:
    """The places of ``settings`` that an error names: by a word that no other of them has."""
    words = [{word for word in re.findall(r"[a-z]+", setting.name.lower()) if len(word) > 3} for setting in settings]
    counts = Counter(itertools.chain(*words))
    found = {word[:_STEM] for word in re.findall(r"[a-z]+", said.lower())}
    return {
        place
        for place, mine in enumerate(words)
        if any(counts[word] == 1 and word[:_STEM] in found for word in mine - _COMMON)
    }
