"""The warning that nobody stated the settings of the run, with the rules that wait for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from three_walls.advice.finding import Finding, Outcome
from three_walls.advice.format.conditions import unit_of_setting
from three_walls.advice.wording import list_labels
from three_walls.lib.fact import FactSheet
from three_walls.lib.measurement import GIVE_CONFIG
from three_walls.lib.report_warning import SETTINGS_UNKNOWN, ReportWarning
from three_walls.megatron.settings.run_config import RunConfig

_COMPLETE = ("config file", "log arguments", "log config", "command line")
"""Sources that state all settings of a run; from others a few are known (``megatron/settings/run_config.py``)."""

_MOST_NAMES = 4


def warn_of_unknown_settings(
    config: RunConfig, findings: Sequence[Finding], facts: FactSheet, *, leaves_config: bool = False
) -> tuple[ReportWarning, ...]:
    """How many rules wait for settings, for which most, and what to give; nothing where a source states them.

    ``leaves_config``: whether a saved configuration lies next to the traces and was not read.
    """
    if any(value.is_stated_by(source) for value in config.values.values() for source in _COMPLETE):
        return ()
    waiting = [names for finding in findings if (names := list_missing_settings(finding, facts))]
    if not waiting:
        return ()
    rules = f"{len(waiting)} of {len(findings)} rules wait" if len(waiting) > 1 else f"1 of {len(findings)} rules waits"
    counts = Counter(name for names in waiting for name in names)
    most = sorted(counts, key=lambda name: (-counts[name], name))[:_MOST_NAMES]
    or_log = (
        ", because the log does not state them" if facts.number("log_files_count") else " or its training log (--log)"
    )
    beside = ", which lies next to the traces" if leaves_config else ""
    message = (
        f"The settings of the run are unknown, and {rules} for them: pass its saved configuration "
        f"(--config run_config.yaml{beside}){or_log}. Most needed: {list_labels(most, facts)}."
    )
    return (ReportWarning(SETTINGS_UNKNOWN, message),)


def list_missing_settings(finding: Finding, facts: FactSheet) -> tuple[str, ...]:
    """What an undecided rule lacks that the settings give: settings themselves, or facts that follow from them."""
    return tuple(
        name
        for name in dict.fromkeys(finding.missing if finding.outcome is Outcome.UNKNOWN else ())
        if unit_of_setting(name) or (facts.get(name).missing_reason or "").endswith(GIVE_CONFIG)
    )
