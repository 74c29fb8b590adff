"""What an edit changes in a step, in numbers: applied to the step's dependency graph by ``replay/``.

``advice/format/replay_entries.py`` makes it of what a rule states and of the facts of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from three_walls.facts.fact_rows import Prediction
from three_walls.tables.buckets import (
    COMMUNICATION_CATEGORIES,
    COMPUTE_CATEGORIES,
    GEMM_CATEGORIES,
    Group,
    categories_of,
)
from three_walls.tables.model_parts import OPERATORS, PARTS
from three_walls.tables.prediction_intervals import Levels


class Action(StrEnum):
    """How a transformation changes the work that it selects."""

    SCALE = "scale"
    """Operations take ``time`` of their duration, and ``host`` of the host time of their launches.

    ``added_kernels`` new kernels are launched before each, which take ``added_time`` of what it took on the device.
    """
    FUSE = "fuse"
    """As scale, but each run of selected operations is launched by one call."""
    GRAPH = "graph"
    """Each run of selected operations is launched by one call; the operations stay.

    Before the runs of each pass through a layer ``added_kernels`` are launched, which copy its inputs to where the
    graph reads them. They take ``added_time`` of what these runs took on the device.
    """
    UNGRAPH = "ungraph"
    """Each selected operation of a CUDA graph is launched by a call of its own, in place of one for the whole graph.

    It takes the host ``added_host_us``, with what Python does before it.
    """
    HIDE = "hide"
    """Communication holds no compute up: what waits for it in ``share`` of the passes starts without it."""
    EXPOSE = "expose"
    """Selected communication and compute take turns, in the order in which they began: nothing is hidden any more."""
    HOST = "host"
    """All host time between calls, and the calls, take ``host`` of what they did."""
    UNWAIT = "unwait"
    """Synchronizing calls that wait for selected operations, and whose names ``calls`` matches, return at once."""
    REPEAT = "repeat"
    """Selected forward work is done ``time`` times more, before its backward pass (recompute)."""
    MICRO_BATCH = "micro_batch"
    """``factor`` times as many samples in each pass, in as many fewer passes.

    ``time`` and ``host`` are those of one doubling, or of one halving where ``factor`` is below 1: four times as many
    samples are two doublings.
    """
    BALANCE = "balance"
    """Selected work takes on every rank the mean of what the captured ranks took, layer by layer and pass by pass.

    The host launches GEMMs of experts as those of shapes that occurred before (``replay/unseen_shapes.py``).
    """
    HEAL = "heal"
    """The selected ranks take the median time of their peers for their kernels and host segments."""
    EVEN_HOSTS = "even_hosts"
    """The host of each selected rank loses ``share`` of what it takes more than the fastest captured one."""


CATEGORY_GROUPS: Mapping[str, tuple[str, ...]] = {
    "communication": COMMUNICATION_CATEGORIES,
    "compute": COMPUTE_CATEGORIES,
    "copies": categories_of(Group.COPY),
    "gemms": GEMM_CATEGORIES,
}
"""Names of groups of categories that a selection may give instead of a category."""
WORK = (*PARTS, *OPERATORS)
"""What an operation may be part of, or be by the operators around its launch."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which operations are meant: those that match every field that is given. Without any, all."""

    categories: tuple[str, ...] = ()
    """Names of categories (``tables/buckets.py``), or of groups of them: ``communication``, ``compute``, ``gemms``."""
    work: tuple[str, ...] = ()
    """Labels of ``layers/labels.py``: ``rope``, ``loss``, ``expert_gemm``, ``dispatch``, ..."""
    modules: tuple[str, ...] = ()
    """Modules of a layer: ``attention``, ``router``, ``dispatch``, ``experts``, ``combine``; ``outside`` of layers."""
    directions: tuple[str, ...] = ()
    """``forward``, ``backward``, ``recompute``."""
    kernels: str = ""
    """Regular expression, searched in the kernel's name."""
    ranks: tuple[int, ...] = ()
    """Rank numbers."""
    layers_with: tuple[str, ...] = ()
    """Only layers that run an operation of one of these categories: ``linear_attention`` finds those of Mamba."""
    inner_layers: bool = False
    """Only layers that are neither the first nor the last of their rank."""
    follows_recompute: tuple[str, ...] = ()
    """Only what its thread launches right after recomputed ``work`` of these labels, and is not recomputed itself."""
    calls: str = ""
    """For ``unwait``: regular expression, searched in the names of the synchronizing calls."""
    sites: tuple[int, ...] = ()
    """For ``unwait``: numbers of the places in the code that synchronize (``replay/synchronizations.py``)."""
    after_gemm: int = 0
    """Only what follows so many GEMMs of its module in its pass through a layer, """
    before_gemm: int = 0
    """and precedes this one; 0 for all."""


ALL = Levels(1.0, 1.0, 1.0)
NOTHING = Levels(0.0, 0.0, 0.0)


class Level(StrEnum):
    """Which end of a range is meant."""

    LOW = "low"
    LIKELY = "likely"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Transformation:
    """One change of a step."""

    action: Action
    select: Selection = Selection()
    time: Levels = ALL
    """Of the time on the device, what remains. For ``repeat``: how much is added. For ``micro_batch``: of a pass of as
    many times the samples, per doubling or halving."""
    host: Levels = ALL
    """Of the host time of the launches (for ``host``: of all host time), what remains. For ``micro_batch``: of that of
    a pass, per doubling or halving."""
    share: Levels = ALL
    """For ``hide``: the share of the passes that can be covered. For ``even_hosts``: of the difference, what goes."""
    slowdown: Levels = ALL
    """For ``hide``: how much longer compute takes while communication runs."""
    factor: float = 1.0
    """For ``micro_batch``."""
    launches: int = 1
    """For ``fuse``: how many launches of each run remain."""
    added_time: Levels = NOTHING
    """For ``scale``: device time of new kernels before each operation, as a share of what it took before. For
    ``graph``: before each graph, as a share of what its operations took."""
    added_kernels: Levels = NOTHING
    """For ``scale`` and ``graph``: how many new kernels are launched before each operation or graph, each as the step
    usually launches one."""
    added_launch_us: Levels = NOTHING
    """For ``scale``: host time added to each launch of the selected operations."""
    overhead_us: Levels = NOTHING
    """For ``graph``: host time of launching one graph, in place of the launches that it replaces."""
    added_host_us: Levels = NOTHING
    """Host time added to each pass through a layer, besides the launches: for ``repeat`` to the backward passes, for
    ``scale`` to every pass that has selected operations. For ``ungraph``: of each launch."""
    reason: str = ""
    """Where the parameters come from."""
    source: str = ""


FREE_HOST = Transformation(Action.HOST, host=NOTHING)
"""The host takes no time."""


class Predictor(Protocol):
    """Predicts steps. The range of a step after changes is that of their gain, from the likely step as it is."""

    @property
    def missing_reason(self) -> str:
        """Why nothing is predicted: what the capture lacks. Empty where predictions are made."""

    @property
    def error_fraction(self) -> float:
        """The error of the unchanged replay, as a fraction of the step."""

    @property
    def step_ns(self) -> Prediction:
        """The step as it is, unprofiled."""

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:
        """The step with all ``transformations`` applied in their order."""

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:
        """The likely step of :meth:`predict`, from a single replay."""

    def explain(self, transformation: Transformation) -> str:
        """Why the transformation changes nothing here (nothing is selected), or empty."""

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """Bucket to its time in the predicted step of the representative rank; sums to that step."""

    def paused_after(self, transformations: Sequence[Transformation]) -> int:
        """What the pauses of the host take of the predicted step, in ns."""

    @property
    def absent_fraction(self) -> float:
        """Of the likely step as it is: in which its ranks wait for ranks that were not captured."""

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:
        """What the predicted step's critical path is made of: ``host``, ``gap`` or a group of buckets to its time."""


@dataclass(frozen=True, slots=True)
class NoPredictor:
    """Stands for the Predictor of a run whose step cannot be replayed."""

    missing_reason: str

    @property
    def step_ns(self) -> Prediction:
        return Prediction(0, 0, 0, self.missing_reason)

    @property
    def error_fraction(self) -> float:
        return 0.0

    @property
    def absent_fraction(self) -> float:
        return 0.0

    def predict_likely_ns(self, transformations: Sequence[Transformation]) -> int:  # noqa: ARG002
        return 0

    def predict(self, transformations: Sequence[Transformation]) -> Prediction:  # noqa: ARG002 - as in Predictor
        return self.step_ns

    def explain(self, transformation: Transformation) -> str:  # noqa: ARG002
        return ""

    def budget_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:  # noqa: ARG002
        return {}

    def paused_after(self, transformations: Sequence[Transformation]) -> int:  # noqa: ARG002
        return 0

    def limits_after(self, transformations: Sequence[Transformation]) -> Mapping[str, int]:  # noqa: ARG002
        return {}
