"""A run to compare, and what a comparison shows of it."""

from __future__ import annotations

from dataclasses import dataclass

from three_walls.report.comparison import ComparedRun
from three_walls.report.report import Report
from three_walls.step.step_rows import StepSource


@dataclass(frozen=True, slots=True)
class Run:
    """A report with a name. The report of training logs alone has no inputs and no budget."""

    name: str
    report: Report

    @property
    def has_trace(self) -> bool:
        return bool(self.report.inputs)

    @property
    def is_one_window(self) -> bool:
        """Whether no steps were found in its trace: how long a capture took says nothing of a step."""
        return self.report.step.source == StepSource.ONE_WINDOW

    @property
    def traced_step_ns(self) -> int | None:
        """Length of the representative step: what its budget sums to."""
        return None if self.is_one_window else sum(row.ns for row in self.report.budget) or None

    @property
    def unprofiled_step_ns(self) -> int | None:
        """The median of the log's unprofiled steps."""
        return (self.report.log.unprofiled_step_ns if self.report.log else None) or None  # a log may print 0 ms

    @property
    def replayed_step_ns(self) -> int | None:
        """The step without the profiler by replay alone, also where a log gives it."""
        if self.is_one_window:
            return None
        predicted = self.report.facts.number("predicted_unprofiled_step_ns")
        if predicted:
            return round(predicted)
        return self.report.verdict.replayed_step_ns if self.report.log is None else None

    @property
    def began_at(self) -> tuple[str | None, str | None]:
        """When the trace began to be recorded, in UTC, and when the log printed its first iteration, in local time."""
        return self.report.recorded_at, self.report.log.began_at if self.report.log else None

    @property
    def tokens_per_step(self) -> int | None:
        """Global batch size x sequence length."""
        batch, length = (self.report.config.size(key) for key in ("global_batch_size", "seq_length"))
        return batch * length if batch and length else None

    @property
    def world_size(self) -> int | None:
        size = self.report.facts.number("world_size")
        return round(size) if size else None

    @property
    def gpu(self) -> str | None:
        """The model of its GPUs; of several kinds all, by name."""
        names = {rank.gpu for rank in self.report.ranks if rank.gpu}
        return ", ".join(sorted(names)) or None


def summarize_run(run: Run) -> ComparedRun:
    """What a comparison shows of ``run`` itself."""
    report = run.report
    first = next((step for step in report.plan if step.edits), None)
    return ComparedRun(
        name=run.name,
        files=(*(file.path_name for file in report.inputs), *(report.log.files if report.log else ())),
        has_trace=run.has_trace,
        traced_step_ns=run.traced_step_ns,
        replayed_step_ns=run.replayed_step_ns,
        unprofiled_step_ns=run.unprofiled_step_ns,
        tokens_per_step=run.tokens_per_step,
        world_size=run.world_size,
        gpu=run.gpu,
        wall=None if report.verdict.abstained else report.verdict.wall,
        sub_wall=None if report.verdict.abstained else report.verdict.sub_wall,
        verdict=report.verdict.reason,
        next_entry=first.finding.title if first else "",
        next_rule=first.rule if first else "",
        next_gain=first.gain_ns if first else None,
    )
