"""Twice the text takes at most 2.5 times the work, whatever the text repeats."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest

from three_walls.capture.scrub.secrets import Secrets, scan_for_leaks
from three_walls.capture.scrub.texts import TextFilter, filter_name
from three_walls.tables.shareable import cut_private, cut_sentence, holds_key, scrub_rules

pytestmark = [pytest.mark.slow, pytest.mark.attack]

_CHARACTERS = 8_000
_ATTEMPTS = 4

REPEATED = [
    "a",
    "1",
    "_",
    "/",
    ".",
    ":",
    "-",
    "\\",
    "ä",
    "a-",
    "a.b:",
    "a/",
    "Aa1_",
    "gemm",
    "eyJ-",
    "SG.a-",
    "fe80:",
    "12:",
    "1.",
    "word ",
    "hf_",
    "a@",
    "111 ",
    "AB",
    "~/",
    "x://",
    "Bearer ",
    "user:pw",
    "zwergel_",
    "aten::",
    ", seq = 1",
    ", sizes = [[",
    "training_step_",
    "Backward",
    "--token ",
    "-----BEGIN ",
]


def work_of(search: Callable[[str], object], text: str) -> float:
    """Seconds of the processor for the fastest of a few searches."""
    seconds = []
    for _ in range(2):
        begun = time.process_time()
        search(text)
        seconds.append(time.process_time() - begun)
    return min(seconds)


def assert_linear(search: Callable[[str], object], repeated: str) -> None:
    text = repeated * (_CHARACTERS // len(repeated))
    ratios = []
    for _ in range(_ATTEMPTS):  # other programs disturb the clock, but not every time
        once, twice = work_of(search, text), work_of(search, text + text)
        if twice <= max(2.5 * once, 0.004):
            return
        ratios.append(twice / once)
    raise AssertionError(f"{repeated!r}: twice the text took {min(ratios):.1f} times the work")


def filter_once(kind: str) -> Callable[[str], object]:
    return lambda text: TextFilter(scrub_rules(), Secrets()).filter(kind, text)


SEARCHES: dict[str, Callable[[str], object]] = {
    "cut_private": cut_private,
    "cut_sentence": cut_sentence,
    "holds_key": holds_key,
    "filter_name": lambda text: filter_name(text, lambda _: "word1"),
    **{kind: filter_once(kind) for kind in ("kernel_ids", "call_ids", "range_texts", "sentences", "gpu_names")},
    "occur_in": Secrets(strict={"a" * 9, "12345678", "gemmgemmgemm"}, identities={"a-a", "gemm", "node.7"}).occur_in,
    "scan": lambda text: scan_for_leaks(io.BytesIO(text.encode()), Secrets(strict={text, text[:99]}), [text]),
    "loose": lambda text: scan_for_leaks(io.BytesIO(b"gemm"), Secrets(loose={text, text[:99]}), [text]),
    "add_value": lambda text: Secrets().add_value(text),
}


@pytest.mark.parametrize("search", SEARCHES)
def test_twice_the_text_is_twice_the_work(search: str) -> None:
    for repeated in REPEATED:
        assert_linear(SEARCHES[search], repeated)


def test_many_values_take_no_more_work_per_text() -> None:
    text = "void at::native::elementwise_kernel<float>(int) " * 100
    few, many = ({f"/home/alice/run{number:09}" for number in range(count)} for count in (1_000, 20_000))
    secrets_few, secrets_many = Secrets(strict=few), Secrets(strict=many)
    assert not secrets_few.occur_in(text)
    assert not secrets_many.occur_in(text)
    assert work_of(secrets_many.occur_in, text) <= max(2.5 * work_of(secrets_few.occur_in, text), 0.004)


def test_a_search_that_is_not_linear_is_caught() -> None:
    with pytest.raises(AssertionError, match="times the work"):  # eight times as much, so that no disturbance hides it
        assert_linear(lambda text: re.search("a*a*b", text[::20]), "a")
