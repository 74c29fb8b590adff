"""Facts of the replay: how well it reproduces the captured steps, and the step that it predicts without the profiler.

``three_walls/replay`` measures them: it needs the finished attribution, and labels from other facts.
"""

from __future__ import annotations

from three_walls.model.fact import FactGroup

facts = FactGroup()

REPLAY_ERROR = facts.fact(
    "replay_error_fraction",
    "fraction",
    "the replay error",
    "How far the unchanged replay of a step is from the step as captured: the largest distance over all kept steps and "
    "captured ranks, as a fraction of the step. It says how well dependencies are known, not how well a change of the "
    "step is predicted.",
    whole="the captured step",
)
PREDICTED_STEP = facts.duration(
    "predicted_unprofiled_step_ns",
    "the predicted unprofiled step",
    "Length of the representative step without what the profiler is taken to have added to the host, by replay. Where "
    "a log was given it decides, and this is only compared with it.",
    "The log's own unprofiled step is measured; this one is a prediction.",
)
PREDICTED_STEP_LOW = facts.duration(
    "predicted_unprofiled_step_low_ns",
    "the lowest predicted unprofiled step",
    "The predicted unprofiled step where the profiler added most.",
)
PREDICTED_STEP_HIGH = facts.duration(
    "predicted_unprofiled_step_high_ns",
    "the highest predicted unprofiled step",
    "The predicted unprofiled step where the profiler added least.",
)
PREDICTION_ERROR = facts.fact(
    "predicted_step_error_fraction",
    "fraction",
    "the error of the predicted unprofiled step",
    "How far the predicted unprofiled step is from the log's, as a fraction of that; negative where the prediction is "
    "shorter.",
    whole="the log's unprofiled step",
)
