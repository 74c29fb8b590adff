"""How an override that is wrong fails: at once, when the model is built, or silently."""

from __future__ import annotations

from enum import StrEnum


class FailureMode(StrEnum):
    """What happens to a launch that has the problem. Only ``REFUSED`` stops it at once."""

    REFUSED = "refused"
    """Megatron-Bridge fails when it applies the override or validates the configuration."""
    FAILS_AT_BUILD = "fails_at_build"
    """Megatron-Bridge accepts it, and the run fails when the model is built, or in a step."""
    IGNORED = "ignored"
    """Megatron-Bridge accepts it and silently drops or resets it: the edit does nothing."""
    NOT_VALIDATED = "not_validated"
    """Megatron-Bridge accepts it without a check; what a value of this kind then does is not known."""
    UNKNOWN = "unknown"
    """Whether Megatron-Bridge accepts it depends on other settings, or was not tried."""

    def describe(self, problem: str, release: str) -> str:
        """``problem`` as a sentence that states how it fails, unless it is refused at once."""
        return _SENTENCES[self].format(release=release, problem=problem)


_SENTENCES = {
    FailureMode.REFUSED: "{problem}",
    FailureMode.FAILS_AT_BUILD: "Megatron-Bridge {release} accepts this, but the model cannot be built: {problem}",
    FailureMode.IGNORED: "Megatron-Bridge {release} accepts this but silently ignores it: {problem}",
    FailureMode.NOT_VALIDATED: "Megatron-Bridge {release} accepts this without checking it: {problem}",
    FailureMode.UNKNOWN: "Megatron-Bridge {release} may refuse this, depending on other settings: {problem}",
}
