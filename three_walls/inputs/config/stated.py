"""What the user hands in beside the traces: settings and files that hold them, highest precedence first."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from three_walls.inputs.config.saved_config import read_config_file
from three_walls.inputs.config.sources import SaidSettings
from three_walls.inputs.config.user_settings import read_user_settings


def read_stated(config: str | Path | None, settings: Iterable[str]) -> list[SaidSettings]:
    """``settings`` (``key=value``), then the saved configuration ``config``; raises UsageError or InputError."""
    words = [settings] if isinstance(settings, str) else list(settings)
    found = [read_user_settings(words)] if words else []
    if config is not None:
        found.append(read_config_file(Path(config)))
    return found
