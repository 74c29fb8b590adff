"""Lines that hold an anchor, whatever stands around them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from three_walls.log.read_lines import scan_lines

ANCHORS = (b"elapsed", b"out of memory", b"ab")


def found_in(text: bytes) -> list[bytes]:
    return [line.text for line in scan_lines([text], ANCHORS, lambda: False)]


def test_only_lines_with_an_anchor_come_out_in_order_and_once() -> None:
    assert found_in(b"ab ab\nnothing\n x elapsed ab\nab") == [b"ab ab", b" x elapsed ab", b"ab"]
    assert found_in(b"") == []


@given(st.lists(st.text("abelpsd outfmry\t", max_size=30)).map("\n".join))
def test_a_text_that_is_not_ascii_is_searched_alike(text: str) -> None:
    plain = text.encode()
    assert found_in(plain + b"\n") == [line for line in found_in(plain + b"\n\xff\xe9\n") if line != b"\xff\xe9"]
    assert found_in(plain) == [line for line in plain.split(b"\n") if any(anchor in line for anchor in ANCHORS)]


def test_every_line_can_be_asked_for_and_states_whether_it_holds_an_anchor() -> None:
    found = list(scan_lines([b"no\nab\n\n", b"x el", b"apsed\nno"], ANCHORS, lambda: True))
    assert found == [(b"no", False, True), (b"ab", True, True), (b"x elapsed", True, True), (b"no", False, False)]


def test_colours_are_taken_out_before_anchors_are_searched() -> None:
    assert found_in(b"\x1b[32mela\x1b[0mpsed\x1b[K: \x1b[1;31m3\x1b[0m\n\x1b]0;title\x07ab\n") == [b"elapsed: 3", b"ab"]
