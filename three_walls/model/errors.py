"""Errors that a user can act on: a class per exit code, a line per message."""

from __future__ import annotations


class ThreeWallsError(Exception):
    """A problem that the user can act on. The message states what was expected, what was found and what to do.

    ``exit_code`` is what the command line returns; it is part of the documented interface.
    """

    exit_code = 1


class UsageError(ThreeWallsError):
    """The command line or a library argument is wrong."""

    exit_code = 2


class InputError(ThreeWallsError):
    """An input cannot be read, or is not an Nsight Systems export."""

    exit_code = 3


class NothingToAnalyzeError(ThreeWallsError):
    """The export is intact but lacks what any analysis needs: CUDA kernels."""

    exit_code = 4


class RuleBaseError(ThreeWallsError):
    """The rule base has errors. All of them are listed, each with file, line and column."""

    exit_code = 5
