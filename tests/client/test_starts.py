"""Keys that clients make up."""

from __future__ import annotations

import time
import uuid

import pytest

from pgflow._client.starts import new_keys


@pytest.mark.parametrize("count", [0, 1, 2, 5000])
def test_keys_are_uuids_of_version_7_in_their_order(count: int) -> None:
    before = time.time_ns() // 1_000_000
    keys = new_keys(count)
    after = time.time_ns() // 1_000_000
    assert len(keys) == count
    assert keys == sorted(set(keys))
    for text in keys:
        key = uuid.UUID(text)
        assert str(key) == text
        assert (key.version, key.variant) == (7, uuid.RFC_4122)
        assert before <= key.int >> 80 <= after


def test_keys_of_two_batches_have_nothing_in_common_but_their_time() -> None:
    assert len({key for _ in range(200) for key in new_keys(50)}) == 200 * 50
    tails = [key[24:] for key in new_keys(1000)]
    assert len(set(tails)) == len(tails)
