"""Declares facts and artifacts as functions whose parameters name what they are made from; makes each once per run.

    @duration("GPU idle time per step", needs=("cuda_graph_activity",))
    def idle_ns(step: StepView) -> int:
        \"\"\"Time per step in which nothing runs on the GPU.\"\"\"
        return step.owned_ns(*IDLE_BUCKETS)

A fact has the name of its function, and the docstring is the meaning that users read: it can be read alone, and ends
with "Not the same as: ..." where that helps. An artifact is anything else that is made once per run: a frame, rows of
the report. :class:`Artifacts` makes what is asked for.

A parameter is the fact or artifact of that name. Where it is missing, so is what is made from it, for the same reason;
a parameter annotated as ``Measurement`` is given with the reason instead. A function returns a value, or a
``Measurement`` where it may lack one. ``needs``: capabilities of the trace (``trace/capabilities.py``) without
which a fact is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, overload

from three_walls.lib.fact import UNITS, FactDefinition
from three_walls.lib.measurement import Measurement, known, missing

Function = Callable[..., object]
F = TypeVar("F", bound=Function)
T = TypeVar("T")

_NOT = " Not the same as: "
_TIME, _FRACTION = "Time per step ", "Fraction of the step "


class Declared(NamedTuple):
    """A function that makes a fact or an artifact."""

    function: Function
    parameters: Mapping[str, bool]
    """By name, whether it is given with the reason where it is missing."""
    module: str
    definition: FactDefinition | None = None
    """None for an artifact."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of all that it is made from."""
        return (*self.parameters, *(("run",) if self.definition and self.definition.needs else ()))


class Catalog:
    """Declarations by name, those of each module in order."""

    def __init__(self) -> None:
        self.declared: dict[str, Declared] = {}
        self._following: dict[tuple[frozenset[str], frozenset[str]], frozenset[str]] = {}

    def artifact(self, function: F) -> F:
        """Declares what is made once per run and is no fact."""
        self._add(function.__name__, _read(function))
        return function

    def fact(
        self,
        unit: str,
        label: str,
        *,
        name: str = "",
        meaning: str = "",
        whole: str = "",
        needs: tuple[str, ...] = (),
    ) -> Callable[[F], F]:
        """Declares a fact. ``name`` and ``meaning``: where the function's name and docstring cannot be those.

        Raises ValueError for a unit that is not one of ``UNITS``.
        """
        return self._decorate(FactDefinition(name, unit, label, meaning, whole=whole, needs=needs))

    def flag(self, label: str, *, if_true: str, if_false: str) -> Callable[[F], F]:
        """Declares what is true or false, with the sentence for each answer."""
        return self._decorate(FactDefinition("", "flag", label, "", if_true=if_true, if_false=if_false))

    def duration(
        self,
        label: str,
        *,
        name: str = "",
        meaning: str = "",
        share: str = "",
        needs: tuple[str, ...] = (),
    ) -> Callable[[F], F]:
        """Declares a time in ns, ``<subject>_ns``.

        ``share``: the label of ``<subject>_fraction``, its fraction of the step, where there is such a fact. The
        meaning then begins with "Time per step", which the fraction's replaces by "Fraction of the step". That is the
        step without pauses of the host: what rules compare with a limit does not shrink where one is long.
        """
        return self._decorate(FactDefinition(name, "ns", label, meaning, needs=needs), share)

    def quotient(
        self, module: str, name: str, label: str, meaning: str, quotient_of: tuple[str, str], *, whole: str
    ) -> None:
        """Declares a fraction that is derived from two facts, the numerator and the denominator, so that a plan can
        derive it again."""
        numerator, denominator = quotient_of

        def divide(part: Measurement[int], of: Measurement[int]) -> Measurement[float]:
            if reason := part.missing_reason or of.missing_reason:
                return missing(reason)
            if part.whole is None or not of.whole:
                definition = self.declared[denominator].definition
                return missing(f"{definition.label if definition else denominator} is zero")
            return known(part.whole / of.whole)

        definition = FactDefinition(
            name, "fraction", label, meaning, whole=whole, numerator=numerator, denominator=denominator
        )
        self._add(name, Declared(divide, {numerator: True, denominator: True}, module, definition))

    def _decorate(self, form: FactDefinition, share: str = "") -> Callable[[F], F]:
        def declare(function: F) -> F:
            text = " ".join((form.meaning or function.__doc__ or "").split())
            meaning, _, unlike = text.partition(_NOT)
            name = form.name or function.__name__
            if form.unit not in UNITS:
                raise ValueError(f"fact {name}: {form.unit} is not a unit")
            definition = replace(form, name=name, meaning=meaning, not_the_same_as=unlike)
            self._add(name, _read(function)._replace(definition=definition))
            if share:
                of_step = f"{_FRACTION}{meaning.removeprefix(_TIME)}"
                fraction = f"{name.removesuffix('_ns')}_fraction"
                self.quotient(
                    function.__module__, fraction, share, of_step, (name, "unpaused_step_ns"), whole="the step"
                )
            return function

        return declare

    def _add(self, name: str, declared: Declared) -> None:
        if name in self.declared:
            raise ValueError(f"{name} is declared twice")
        self.declared[name] = declared
        self._following.clear()

    def following(self, names: Iterable[str], kept: Iterable[str] = ()) -> frozenset[str]:
        """``names``, and all that is made from these and not only by way of ``kept``.

        A plan asks for the same ones dozens of times.
        """
        following, stays = frozenset(names), frozenset(kept)
        asked = following, stays
        while asked not in self._following:
            more = {name for name, each in self.declared.items() if following.intersection(each.sources)} - stays
            if more <= following:
                self._following[asked] = following
            following |= more
        return self._following[asked]


def _read(function: Function) -> Declared:
    annotations = {name: str(kind) for name, kind in function.__annotations__.items() if name != "return"}
    parameters = {name: kind.startswith("Measurement") for name, kind in annotations.items()}
    return Declared(function, parameters, function.__module__)


CATALOG = Catalog()
"""What the modules of this package and of those above it declare."""

artifact, fact, flag, duration = CATALOG.artifact, CATALOG.fact, CATALOG.flag, CATALOG.duration


class Artifacts:
    """The facts and artifacts of one run. ``inputs``: what is made elsewhere, by name."""

    def __init__(self, inputs: Mapping[str, object], catalog: Catalog = CATALOG) -> None:
        self._catalog = catalog
        self._measurements = {name: _as_measurement(value) for name, value in inputs.items()}

    @overload
    def find(self, function: Callable[..., Measurement[T]]) -> Measurement[T]: ...
    @overload
    def find(self, function: Callable[..., T]) -> Measurement[T]: ...
    def find(self, function: Callable[..., Any]) -> Measurement[Any]:
        """What ``function`` makes, or why there is none."""
        return self.named(function.__name__)

    @overload
    def pull(self, function: Callable[..., Measurement[T]]) -> T: ...
    @overload
    def pull(self, function: Callable[..., T]) -> T: ...
    def pull(self, function: Callable[..., Any]) -> Any:
        """What ``function`` makes, which cannot be missing."""
        measurement = self.find(function)
        assert not measurement.is_missing, f"{function.__name__} is missing: {measurement.missing_reason}"
        return measurement.value

    def named(self, name: str) -> Measurement[Any]:
        """The fact or artifact ``name``, or why there is none."""
        if name not in self._measurements:
            self._measurements[name] = self._make(name)
        return self._measurements[name]

    def with_inputs(self, inputs: Mapping[str, object]) -> Artifacts:
        """The same run with ``inputs`` added or replaced: only what follows from these is made again.

        What :meth:`find` gave stays as it is, whatever it was made from, and so does what follows from it alone.
        """
        changed = Artifacts(inputs, self._catalog)
        kept = {name for name, each in changed._measurements.items() if each is self._measurements.get(name)}
        stale = self._catalog.following(changed._measurements.keys() - kept, kept)
        changed._measurements |= {name: each for name, each in self._measurements.items() if name not in stale}
        return changed

    def _make(self, name: str) -> Measurement[Any]:
        declared = self._catalog.declared[name]
        for need in declared.definition.needs if declared.definition else ():
            run: Measurement[Any] = self.named("run")
            if run.value is None:
                return run
            if reason := run.value.lacks(need):
                return missing(reason)
        arguments: list[object] = []
        for parameter, takes_reason in declared.parameters.items():
            source = self.named(parameter)
            if source.is_missing and not takes_reason:
                return source
            arguments.append(source if takes_reason else source.value)
        return _as_measurement(declared.function(*arguments))


def _as_measurement(value: object) -> Measurement[Any]:
    return value if isinstance(value, Measurement) else known(value)
