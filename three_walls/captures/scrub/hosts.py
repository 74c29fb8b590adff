"""Stable names for machines: ranks of one host share a clock, so which ranks share one must stay visible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from three_walls.model.config import ConfigValue

_HOST_NUMBERS = ("GROUP_RANK", "NODE_RANK", "SLURM_NODEID")


@dataclass(slots=True)
class HostNames:
    """Pseudonyms of one call of scrub; exports that are scrubbed together share it."""

    is_whole_run: bool
    known: dict[str, str] = field(default_factory=dict)

    def name(self, host: str, environment: Mapping[str, ConfigValue], digest: str) -> str:
        """``host-1``, ``host-2``, ... for exports scrubbed together, in the order met.

        Of an export scrubbed alone the launcher's host number counts, so that the exports of a run agree. Where it says
        none and the run has several hosts, the name is the export's own: two hosts must never look like one.
        """
        if host not in self.known:
            self.known[host] = self._choose(environment, digest)
        return self.known[host]

    def _choose(self, environment: Mapping[str, ConfigValue], digest: str) -> str:
        if self.is_whole_run:
            return f"host-{len(self.known) + 1}"
        for variable in _HOST_NUMBERS:
            number = _number(environment, variable)
            if number is not None:
                return f"host-{number + 1}"
        world, local = _number(environment, "WORLD_SIZE"), _number(environment, "LOCAL_WORLD_SIZE")
        return "host-1" if world is not None and world == local else f"host-of-{digest[:8]}"


def _number(environment: Mapping[str, ConfigValue], variable: str) -> int | None:
    found = environment.get(variable)
    text = str(found.value) if found is not None else ""
    return int(text) if text.isdecimal() and len(text) < 10 else None
