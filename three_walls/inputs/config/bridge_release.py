"""Tells the Megatron-Bridge release of a run, with the evidence."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from three_walls.tables.bridge import bridge_releases

BRIDGE_LIBRARY = "megatron_bridge"


def infer_release(paths: Collection[str]) -> tuple[str | None, str]:
    """(release, evidence) from the sections and ``section.key`` of a whole saved configuration or of a log's summary.

    The newest release of whose keys one is there; (None, why) where keys of releases that never met stand together.
    """
    newest, markers = 0, list[str]()
    for index, release in enumerate(bridge_releases()):
        found = [path for path in release.came_with if path in paths]
        if found:
            newest, markers = index, found
    for index, release in enumerate(bridge_releases()[:newest]):
        gone = [path for path in release.last_with if path in paths]
        if gone:
            name = bridge_releases()[index].name
            return None, f"{gone[0]} went after {name}, {markers[0]} came with {bridge_releases()[newest].name}"
    name = bridge_releases()[newest].name
    if markers:
        return name, f"{', '.join(markers[:2])} came with {name}"
    gone = [path for path in bridge_releases()[0].last_with if path in paths]
    if gone:
        return name, f"{', '.join(gone[:2])} went after {name}"
    return None, "none of its keys belongs to one release"


def release_in_log(versions: Sequence[tuple[str, str]]) -> tuple[str | None, str]:
    """(release, evidence) from the libraries that a log names, as (library, release)."""
    said = [release for library, release in versions if library == BRIDGE_LIBRARY]
    return (said[-1], "the log says so") if said else (None, "")
