"""Errors that a user can act on: a class per exit code, a line per message."""

from __future__ import annotations

MOST_MESSAGE_CHARACTERS = 1_000
"""Of an error's message: it may repeat a name or a value of any length from an input."""


class ThreeWallsError(Exception):
    """A problem that the user can act on. The message states what was expected, what was found and what to do.

    ``exit_code`` is what the command line returns; it is part of the documented interface.
    """

    exit_code = 1
    lists_all = False
    """Whether the message has a line per problem; any other message is one line, and shortened if it is very long."""

    def __str__(self) -> str:
        text = super().__str__()
        if self.lists_all or len(text) <= MOST_MESSAGE_CHARACTERS:
            return text
        return f"{text[: MOST_MESSAGE_CHARACTERS * 3 // 4]} ... {text[-MOST_MESSAGE_CHARACTERS // 8 :]}"


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
    lists_all = True


class UnlikeRunsError(ThreeWallsError):
    """The runs to compare are of different models or GPUs."""

    exit_code = 7
