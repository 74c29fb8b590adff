"""Lines that hold an anchor, whatever stands around them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from three_walls.log.scan import scan_lines

ANCHORS = (b"elapsed", b"out of memory", b"ab")


def found_in(text: bytes) -> list[bytes]:
    return list(scan_lines([text], ANCHORS, lambda: False))


def test_only_lines_with_an_anchor_come_out_in_order_and_once() -> None:
    assert found_in(b"ab ab\nnothing\n x elapsed ab\nab") == [b"ab ab", b" x elapsed ab", b"ab"]
    assert found_in(b"") == []


@given(st.lists(st.text("abelpsd outfmry\t", max_size=30)).map("\n".join))
def test_a_text_that_is_not_ascii_is_searched_alike(text: str) -> None:
    # ASCII is searched in one pass for all anchors, other text anchor by anchor.
    plain = text.encode()
    assert found_in(plain + b"\n") == [line for line in found_in(plain + b"\n\xff\xe9\n") if line != b"\xff\xe9"]
    assert found_in(plain) == [line for line in plain.split(b"\n") if any(one in line for one in ANCHORS)]
