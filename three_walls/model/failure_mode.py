"""When a problem of an override strikes: at once, when the model is built, or never, which is worse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FailureMode(StrEnum):
    """What becomes of a launch that has the problem. Only ``REFUSED`` stops it at once."""

    REFUSED = "refused"
    """Applying the override or Megatron-Bridge's validation fails."""
    FAILS_AT_BUILD = "fails_at_build"
    """Megatron-Bridge takes it; it fails when the model is built, or in a step."""
    IGNORED = "ignored"
    """Megatron-Bridge takes it and drops or resets it in silence: the edit does nothing."""
    NOT_VALIDATED = "not_validated"
    """Megatron-Bridge takes it without a check; what a value of this kind does then is not known."""
    UNKNOWN = "unknown"
    """It depends on other settings whether Megatron-Bridge takes it, or was not tried."""


_SENTENCES = {
    FailureMode.REFUSED: "{text}",
    FailureMode.FAILS_AT_BUILD: "Megatron-Bridge {release} takes it, and it fails when the model is built: {text}",
    FailureMode.IGNORED: "Megatron-Bridge {release} takes it and drops it in silence: {text}",
    FailureMode.NOT_VALIDATED: "Megatron-Bridge {release} takes it without a check: {text}",
    FailureMode.UNKNOWN: "whether Megatron-Bridge {release} takes it depends on other settings: {text}",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an override, or the configuration that overrides make, is wrong, and when that strikes."""

    text: str
    failure_mode: FailureMode = FailureMode.REFUSED

    def sentence(self, release: str) -> str:
        """The problem, with when it strikes where that is not at once."""
        return _SENTENCES[self.failure_mode].format(release=release, text=self.text)
