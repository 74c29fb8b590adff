"""When a problem of an override strikes: at once, when the model is built, or never, which is worse."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Strikes(StrEnum):
    """What becomes of a launch that has the problem. Only ``REFUSED`` stops it at once."""

    REFUSED = "refused"
    """Applying the override or Megatron-Bridge's validation fails."""
    AT_BUILD = "at_build"
    """Megatron-Bridge takes it; it fails when the model is built, or in a step."""
    IGNORED = "ignored"
    """Megatron-Bridge takes it and drops or resets it in silence: the edit does nothing."""
    UNCHECKED = "unchecked"
    """Megatron-Bridge takes it without a check; what a value of this kind does then is not known."""
    UNKNOWN = "unknown"
    """It depends on other settings whether Megatron-Bridge takes it, or was not tried."""


_SENTENCES = {
    Strikes.REFUSED: "{text}",
    Strikes.AT_BUILD: "Megatron-Bridge {release} takes it, and it fails when the model is built: {text}",
    Strikes.IGNORED: "Megatron-Bridge {release} takes it and drops it in silence: {text}",
    Strikes.UNCHECKED: "Megatron-Bridge {release} takes it without a check: {text}",
    Strikes.UNKNOWN: "whether Megatron-Bridge {release} takes it depends on other settings: {text}",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an override, or the configuration that overrides make, is wrong, and when that strikes."""

    text: str
    strikes: Strikes = Strikes.REFUSED

    def sentence(self, release: str) -> str:
        """The problem, with when it strikes where that is not at once."""
        return _SENTENCES[self.strikes].format(release=release, text=self.text)
