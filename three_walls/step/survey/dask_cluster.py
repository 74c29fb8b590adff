"""Runs the tasks of a survey on a Dask cluster, which needs the extra ``cluster``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from three_walls.lib.errors import InputError, UsageError
from three_walls.step.survey.rank_survey import RankSurvey, SurveyTask, survey_captures

_CONNECTING_S = 20


def run_on_cluster(tasks: Sequence[SurveyTask], address: str, finish: Callable[[int, RankSurvey | None], None]) -> None:
    """Runs ``tasks`` on the workers of the scheduler at ``address``.

    ``finish`` is called with the place of each task and its survey, or None where its workers died. Raises UsageError
    where the cluster cannot be used, and InputError where the connection to it is lost.
    """
    try:
        from distributed import Client, KilledWorker, as_completed
    except ImportError as error:
        raise UsageError("--scheduler: needs dask; install it with: pip install 'three-walls[cluster]'") from error
    try:
        client = Client(address, timeout=_CONNECTING_S, set_as_default=False)
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        raise UsageError(f"--scheduler: no Dask scheduler answers at {address} ({error})") from error
    with client:
        try:
            client.wait_for_workers(1, timeout=_CONNECTING_S)
            places = {client.submit(survey_captures, task, pure=False): place for place, task in enumerate(tasks)}
            for future in as_completed(list(places), loop=client.loop):
                try:
                    survey = future.result()
                except KilledWorker:
                    survey = None
                finish(places.pop(future), survey)
                future.release()
        except RuntimeError as error:  # a task cannot be unpacked there
            raise UsageError(
                f"--scheduler: the scheduler and the workers of {address} need the same three-walls and Python as "
                f"this machine ({error})"
            ) from error
        except OSError as error:
            raise InputError(f"--scheduler: {address} has no workers, or the connection was lost ({error})") from error
