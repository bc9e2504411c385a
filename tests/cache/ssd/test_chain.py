"""Keys: equal for equal prefixes of equal models, different for all others, and the same in a file's name."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cache.prefix.tokens import encode
from headrace.cache.ssd import EntryKey, Kind, TokenChain, chain_root
from headrace.cache.ssd.key import base_of, key_of, shard_of

ROOT = chain_root(b"model")
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def chain_of(ids: list[int], page: int, root: bytes = ROOT) -> TokenChain:
    chain = TokenChain(root, page)
    chain.extend(ids)
    return chain


def test_a_digest_is_what_the_format_says() -> None:
    """Entries outlive the program: this is not free to change without another root."""
    chain = chain_of([1, 2, 3, 2**32 - 1, 5], 2)
    link = hashlib.sha256(ROOT + bytes.fromhex("01000000 02000000")).digest()
    assert chain.digest(0) == ROOT and chain.digest(2) == link
    link = hashlib.sha256(link + bytes.fromhex("03000000 ffffffff")).digest()
    assert chain.digest(4) == link
    assert chain.digest(5) == hashlib.sha256(link + bytes.fromhex("05000000")).digest()


@given(ids=tokens, page=st.integers(1, 9), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_a_prefix_has_one_digest_however_it_grew(ids: list[int], page: int, cuts: list[int]) -> None:
    whole, grown, done = chain_of(ids, page), TokenChain(ROOT, page), 0
    for cut in sorted(min(cut, len(ids)) for cut in [*cuts, len(ids)]):
        grown.extend(ids[done:cut])
        done = cut
        assert grown.digest(cut) == whole.digest(cut) == chain_of(ids[:cut], page).digest(cut)
    assert len(grown) == len(ids)
    digests = [whole.digest(count) for count in range(len(ids) + 1)]
    assert len(set(digests)) == len(digests)


@given(ids=tokens.filter(bool), page=st.integers(1, 9), data=st.data())
def test_a_changed_token_changes_every_digest_behind_it(ids: list[int], page: int, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(ids) - 1))
    other = [*ids[:at], ids[at] ^ 1, *ids[at + 1 :]]
    one, two = chain_of(ids, page), chain_of(other, page)
    for count in range(len(ids) + 1):
        assert (one.digest(count) == two.digest(count)) == (count <= at)


def test_roots_differ_by_model_and_salt() -> None:
    roots = [chain_root(b"model"), chain_root(b"other"), chain_root(b"model", "key"), chain_root(b"mode", "l"), chain_root(b"")]
    assert len(set(roots)) == len(roots)


@given(ids=tokens, page=st.integers(1, 9), data=st.data())
def test_names_and_keys_are_one_to_one(ids: list[int], page: int, data: st.DataObject) -> None:
    chain = chain_of(ids, page)
    end = data.draw(st.integers(0, len(ids)))
    start = page * data.draw(st.integers(0, end // page))
    run, state = chain.pages(start, end), chain.checkpoint(end)
    for key in (run, state):
        assert key_of(key.name) == key and key.digest == chain.digest(end) and key.end == end
        assert base_of(key.name) == chain.digest(key.start)[:8].hex() and shard_of(key.name) == key.digest[0]
    assert run.name != state.name and (run.start, state.start) == (start, end - end % page)
    assert (run.kind, state.kind) == (Kind.PAGES, Kind.CHECKPOINT)


@given(ids=tokens, page=st.integers(1, 4), block=st.integers(1, 3), data=st.data())
def test_blocks_are_pages_from_boundary_to_boundary(ids: list[int], page: int, block: int, data: st.DataObject) -> None:
    one, two, size = TokenChain(ROOT, page, block), TokenChain(ROOT, page, block), page * block
    one.extend(ids)
    two.extend_packed(encode(ids))
    first, most = size * data.draw(st.integers(0, len(ids) // size)), data.draw(st.integers(0, len(ids)))
    assert list(two.blocks(first, most)) == [one.pages(start, start + size) for start in range(first, most - size + 1, size)]
    assert len(two) == len(ids) and two.digest(len(ids)) == one.digest(len(ids))


def test_errors_name_what_is_wrong() -> None:
    chain = chain_of([1, 2, 3], 2)
    with pytest.raises(ValueError, match="-1 to 4 do not fit"):
        chain.extend([4, -1])
    with pytest.raises(ValueError, match="4294967296"):
        chain.extend([2**32])
    with pytest.raises(ValueError, match="4 tokens was asked for, the chain has 3"):
        chain.digest(4)
    with pytest.raises(ValueError, match="from token 1 on do not begin at a boundary of 2"):
        chain.pages(1, 3)
    with pytest.raises(ValueError, match="token 1 on do not begin at a boundary of 2"):
        next(chain.blocks(1, 3))
    with pytest.raises(ValueError, match="3 to 2 are no range"):
        EntryKey(Kind.PAGES, 3, 2, bytes(8), bytes(32))
    with pytest.raises(ValueError, match="7 and 32 bytes"):
        EntryKey(Kind.PAGES, 0, 2, bytes(7), bytes(32))
    with pytest.raises(ValueError, match="'notes.txt' is not"):
        key_of("notes.txt")
    with pytest.raises(ValueError, match="page_tokens is 0"):
        TokenChain(ROOT, 0)
