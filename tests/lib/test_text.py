"""Numbers, words and lists as people read them."""

from __future__ import annotations

import pytest

from three_walls.lib import text as texts


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "unknown"),
        (0, "0 ms"),
        (400, "<0.001 ms"),
        (12_345, "0.012 ms"),
        (1_234_567, "1.23 ms"),
        (12_345_678, "12.3 ms"),
        (412_345_678, "412 ms"),
        (12_412_345_678, "12,412 ms"),
    ],
)
def test_milliseconds(ns: int | None, text: str) -> None:
    assert texts.format_ms(ns) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (12_000_000, 30_000_000, "12-30 ms"),
        (0, 89_400_000, "0-89 ms"),
        (5_000_000, 5_000_000, "5.0 ms"),
        (None, None, "unknown"),
        (None, 30_000_000, "up to 30.0 ms"),
        (12_000_000, None, "at least 12.0 ms"),
    ],
)
def test_ranges(low: int | None, high: int | None, text: str) -> None:
    assert texts.format_ms_range(low, high) == text


@pytest.mark.parametrize(
    ("fraction", "text"), [(None, "unknown"), (0, "0%"), (0.0001, "<0.1%"), (0.2344, "23.4%"), (1, "100.0%")]
)
def test_shares(fraction: float | None, text: str) -> None:
    assert texts.format_share(fraction) == text


@pytest.mark.parametrize(("value", "text"), [(31.4e9, "31.4 GB/s"), (None, "unknown")])
def test_bandwidth_is_in_powers_of_ten(value: float | None, text: str) -> None:
    assert texts.format_bandwidth(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "unknown"), (0, "0 GB"), (28_000_000, "0.028 GB"), (1_344_000_000, "1.34 GB")]
)
def test_moved_bytes(value: int | None, text: str) -> None:
    assert texts.format_moved(value) == text


def test_long_names_lose_their_middle() -> None:
    assert texts.shorten("void cutlass::kernel", 20) == "void cutlass::kernel"
    assert texts.shorten("void cutlass::device_kernel<Tall>(Params)", 20) == "void cutlass...rams)"


def test_control_characters_are_spelled_out() -> None:
    assert texts.show_control_characters("a\x1b[31m\nb") == "a\\x1b[31m\nb"


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (texts.in_ms(1_234_567_890), "1,234.6 ms"),
        (texts.in_ms(412_345_678, ".3g"), "412 ms"),
        (texts.in_percent(0.2344), "23.4%"),
        (texts.in_percent(0.2344, 0), "23%"),
        (texts.write_times(1.066), "1.07 times"),
        (texts.write_rounded(12_345_678, "ns"), "12.3 ms"),
        (texts.write_rounded(1_234_567_890, "ns"), "1235 ms"),
        (texts.write_rounded(0.05, "fraction"), "5%"),
        (texts.write_rounded(80 * 2**30, "bytes"), "80 GiB"),
        (texts.write_rounded(12_288, "count"), "12,288"),
        (texts.write_rounded(0.5, "ratio"), "0.5"),
    ],
)
def test_numbers_in_sentences(written: str, text: str) -> None:
    assert written == text


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c")]
)
def test_words_are_joined_as_a_list(words: list[str], text: str) -> None:
    assert texts.join_words(words) == text
    assert texts.join_words(words, "or") == text.replace(" and ", " or ")


def test_nouns_have_the_number_of_their_count() -> None:
    assert [texts.count_of(count, "entry", "entries") for count in (0, 1, 1200)] == [
        "0 entries",
        "1 entry",
        "1,200 entries",
    ]
    assert texts.count_of(2, "rank") == "2 ranks"


def test_only_the_first_letter_becomes_a_capital() -> None:
    assert [texts.capitalize(text) for text in ("", "rank 3 on GPU 0")] == ["", "Rank 3 on GPU 0"]


def test_line_breaks_are_spelled_out_where_they_are_not_kept() -> None:
    assert texts.show_control_characters("a\nb", kept="") == "a\\nb"
