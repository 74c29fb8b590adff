"""The buckets of a step: their ids and the titles that readers see."""

from __future__ import annotations

import pytest

from three_walls.tables.buckets import BUCKET_BY_NAME, BUCKETS, Bucket, Group, categories_of


def test_every_id_and_every_title_is_unique() -> None:
    assert len(BUCKET_BY_NAME) == len(BUCKETS)
    assert len({bucket.title for bucket in BUCKETS}) == len(BUCKETS)


@pytest.mark.parametrize("bucket", BUCKETS, ids=lambda bucket: bucket.name)
def test_a_title_is_words_that_fit_into_a_sentence_and_no_id(bucket: Bucket) -> None:
    assert bucket.title
    assert "_" not in bucket.title
    assert not bucket.title.endswith(".")
    first_word = bucket.title.split()[0]
    assert first_word.islower() or first_word.isupper(), "lower case, or an abbreviation"


def test_compute_precedes_communication_so_that_what_communication_owns_is_exposed() -> None:
    names = [bucket.name for bucket in BUCKETS]
    last_compute = max(map(names.index, categories_of(Group.COMPUTE)))
    assert last_compute < min(map(names.index, categories_of(Group.COMMUNICATION)))
