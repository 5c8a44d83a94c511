"""Page digests commit to everything before a page, to the tenant, and to how full the page is."""

from __future__ import annotations

import hashlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import ROOT, salted_root
from pagetrail.controlplane.pages.digests import page_digests


def test_two_pages_by_hand() -> None:
    first = hashlib.sha256(bytes(32) + struct.pack("=2I", 7, 8)).digest()
    second = hashlib.sha256(first + struct.pack("=1I", 9)).digest()
    assert page_digests([7, 8, 9], 2) == [first, second]
    assert page_digests([], 2) == []


@given(
    st.lists(st.integers(0, 3), max_size=12),
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(1, 4),
)
def test_digests_are_equal_where_prompts_are_and_nowhere_else(
    one: list[int], other: list[int], page: int
) -> None:
    ours, theirs = page_digests(one, page), page_digests(other, page)
    assert ours[: len(one) // page] == page_digests(one[: len(one) // page * page], page)
    for place, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        end = (place + 1) * page
        assert (a == b) == (one[:end] == other[:end])


def test_a_salt_hides_a_tenants_pages() -> None:
    salted = page_digests([1, 2], 1, salted_root(b"tenant"))
    assert set(salted).isdisjoint(page_digests([1, 2], 1))
    assert set(salted).isdisjoint(page_digests([1, 2], 1, salted_root(b"")))


@pytest.mark.parametrize("tokens", [[-1], [2**32], [1.5], ["a"]])
def test_what_is_no_token_is_refused(tokens: list[int]) -> None:
    with pytest.raises(BadInputError, match="tokens must be integers"):
        page_digests(tokens, 16)
    with pytest.raises(BadInputError, match="root must be 32 bytes"):
        page_digests([1], 16, ROOT[1:])
    with pytest.raises(BadInputError, match="page_tokens"):
        page_digests([1], 0)
