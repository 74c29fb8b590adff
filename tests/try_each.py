"""Tests of many small things in one: as tests of their own, hand-out and report take longer than what they try."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def try_each(items: Iterable[Item], name: Callable[[Item], str] = str) -> Callable[..., Callable[[], None]]:
    """The test of one of ``items`` as a test of all, which ends with the first that fails and names it."""

    def decorate(test: Callable[[Item], None]) -> Callable[[], None]:
        def test_all() -> None:
            for item in items:
                try:
                    test(item)
                except BaseException as error:
                    error.add_note(f"with {name(item)}")
                    raise

        test_all.__name__ = test.__name__
        test_all.__doc__ = test.__doc__
        return test_all

    return decorate
