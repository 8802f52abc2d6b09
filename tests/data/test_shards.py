"""Shards at their limits, the journal of a build, stamps, and a slow reading of the same arithmetic."""

from __future__ import annotations

import hashlib
import json
from itertools import accumulate
from random import Random

import numpy as np
import pytest
from datalab import build, chat_slice, text_slice, text_store, tokenizer, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.data import needles, order
from iha.data.chat import conversation
from iha.data.files import stamp
from iha.data.store import read_stamps, stamps, write_stamps
from iha.data.tokenise import BATCH_CHARS, Build, Counts, Encoder, EncoderSettings, Mark, Piece, Tokens, batches, clear
from iha.errors import DataError

CAT = "cat cat"  # 2 tokens, 4 with BOS and EOS


@pytest.mark.parametrize(("size", "shards"), [(3, [4] * 5), (4, [4] * 5), (5, [8, 8, 4]), (20, [20]), (21, [20])])
def test_a_shard_ends_with_the_document_that_fills_it(tmp_path, size, shards):
    store = text_store(tmp_path, [CAT] * 5, shard_tokens=size)
    assert [shard["tokens"] for shard in store.metadata["shards"]] == shards
    assert store.starts.tolist() == [0, *accumulate(shards)]
    for i, tokens in enumerate(shards):
        assert store.document_ends(i).tolist() == list(range(4, tokens + 1, 4))


@pytest.mark.parametrize(("most", "kept"), [(8, 2), (9, 3), (11, 3), (12, 3), (13, 4), (99, 5)])
def test_max_tokens_is_passed_by_less_than_a_document(tmp_path, most, kept):
    store = text_store(tmp_path, [CAT] * 5, max_tokens=most)
    assert (store.metadata["n_docs"], store.n_tokens) == (kept, 4 * kept)


@pytest.mark.parametrize(("least", "kept"), [(3, 3), (4, 3), (5, 1), (6, 1)])
def test_a_document_of_just_the_least_length_is_kept(tmp_path, least, kept):
    store = text_store(tmp_path, [CAT, CAT, "cat cat cat cat"], min_document_tokens=least)
    assert (store.metadata["n_docs"], store.metadata["n_short"]) == (kept, 3 - kept)


@pytest.mark.parametrize(("limit", "length"), [(3, 3), (4, 4), (5, 5), (6, 6), (7, 6), (None, 6)])
def test_a_document_is_cut_to_just_its_limit_and_ends_in_eos(limit, length):
    tok = tokenizer()
    ids = Encoder(EncoderSettings(tok.folder, 0, limit)).document("cat cat cat cat").tolist()
    assert len(ids) == length and ids[0] == tok.bos and ids[-1] == tok.eos
    assert ids[1:-1] == tok.encode_text("cat cat cat cat")[: length - 2]


@pytest.mark.parametrize("sizes", [[], [1], [BATCH_CHARS], [BATCH_CHARS + 1, 1], [BATCH_CHARS - 1, 1, 1], [9] * 50])
def test_batches_hold_every_document_once_in_order(sizes):
    documents = ["x" * size for size in sizes]
    made = list(batches(documents))
    assert [d for batch in made for d in batch] == documents and all(made)
    assert all(sum(map(len, batch[:-1])) < BATCH_CHARS for batch in made)
    chats = [[{"role": "user", "content": d}] for d in documents]
    assert [len(batch) for batch in batches(chats)] == [len(batch) for batch in made]


def test_the_corpus_digest_sees_content_order_and_boundaries(tmp_path):
    def digest(name, *texts):
        return text_store(tmp_path / name, list(texts)).metadata["corpus_sha256"]

    found = [digest("a", "cat", "hats"), digest("b", "hats", "cat"), digest("c", "cathats"), digest("d", "cat", "hatS")]
    assert len(set(found)) == 4 and digest("e", "cat", "hats") == found[0]
    chained = b""
    for text in ("cat", "hats"):
        chained = hashlib.sha256(chained + hashlib.sha256(text.encode()).digest()).digest()
    assert found[0] == chained.hex()


def test_what_the_store_takes():
    ids, on = np.arange(3), np.array([True, False, True])
    assert Tokens(ids, None, False, False).kept and not Tokens(ids, None, False, True).kept
    assert Tokens(ids, on, False, False).labels == 1, "the first token is no target"
    assert not Tokens(ids, np.array([True, False, False]), True, False).kept
    assert not Tokens(ids, on, False, True).kept


def test_a_conversation_keeps_its_turns_and_nothing_else():
    turns = [{"role": "user", "content": "a\ud83d", "id": 7}, {"from": "gpt", "value": "b", "score": 1.0}]
    assert conversation(turns) == [{"role": "user", "content": "a\ufffd"}, {"role": "assistant", "content": "b"}]
    assert conversation(({"role": "assistant", "content": "b"},)) == [{"role": "assistant", "content": "b"}]
    assert conversation([{"role": "User", "content": "a"}]) is None


def test_a_packed_store_has_no_journal_left_and_a_plain_one_neither(tmp_path):
    turns = [{"role": "user", "content": "hats"}, {"role": "assistant", "content": "seven"}]
    build(chat_slice(write_rows(tmp_path / "c.jsonl", [{"conversations": turns}] * 3), 64), tmp_path)
    build(text_slice(write_rows(tmp_path / "t.jsonl", [{"text": CAT}])), tmp_path)
    for split in ("sft", "pretrain"):
        names = {path.suffix for path in (tmp_path / "data" / split).iterdir()}
        assert names == ({".ds", ".index", ".mask", ".doc"} if split == "sft" else {".ds", ".index"})


def progress(folder, key="k"):
    made = Build(
        key, Mark(3, 8, 1, 0, 0, "ab", ({"documents": 3, "tokens": 8, "empty": 1, "broken": 0, "replaced": 0},))
    )
    made.add(folder, folder, Piece(np.asarray([1, 9, 2], np.uint16)), iter(()), 10)
    made.save(folder)
    return made


def test_a_journal_comes_back_as_it_was_and_only_for_its_own_build(tmp_path):
    made = progress(tmp_path)
    assert Build.load(tmp_path, "k", tmp_path) == made
    assert made.counts == Counts(n_docs=1, n_tokens=3, max_id=9)
    for key, folder in (("other", tmp_path), ("k", tmp_path / "none")):
        assert Build.load(folder, key, tmp_path) == Build(key)


@pytest.mark.parametrize("change", ["[]", "{}", '"x"', "mark", "counts"])
def test_a_journal_of_another_layout_starts_afresh(tmp_path, change):
    progress(tmp_path)
    path = tmp_path / "progress.json"
    raw = json.loads(path.read_text())
    path.write_text(change if change not in raw else json.dumps({**raw, change: {"unknown": 1}}))
    assert Build.load(tmp_path, "k", tmp_path) == Build("k")


def test_a_shard_that_cannot_be_written_leaves_no_file(tmp_path):
    def dying():
        yield Piece(np.asarray([4], np.uint16))
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        Build("k").add(tmp_path, tmp_path, Piece(np.asarray([1], np.uint16)), dying(), 10)
    assert list(tmp_path.iterdir()) == []


def test_clearing_keeps_what_is_named(tmp_path):
    for name in ("a", "b", ".c.tmp"):
        (tmp_path / name).touch()
    clear(tmp_path, {"b", "gone"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_stamps_are_of_what_was_written_just_now(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    made = progress(folder)
    entries = {name: entry.model_copy(update={"path": f"data/{entry.path}"}) for name, entry in made.files.items()}
    assert read_stamps(entries, tmp_path) == {}, "nobody noted them"
    write_stamps(entries, tmp_path, earlier=["shard_00000.ds.index"])
    noted = read_stamps(entries, tmp_path)
    assert noted == {"shard_00000.ds": stamps(entries, tmp_path)["shard_00000.ds"]}
    assert noted["shard_00000.ds"][0] == 6
    (tmp_path / "data.stamps.json").write_text("[1]")
    assert read_stamps(entries, tmp_path) == {}
    (folder / "shard_00000.ds").unlink()
    assert stamp(folder / "shard_00000.ds") == [] == stamps(entries, tmp_path)["shard_00000.ds"]


def slow_permutation(position, size, seed, epoch):
    """The walk of one position through the network, in Python's whole numbers."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    raw = hashlib.sha512(f"{seed} {epoch}".encode()).digest()
    keys = [int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(6)]
    word, mask = (1 << 64) - 1, (1 << half) - 1
    while True:
        left, right = position >> half, position & mask
        for key in keys:
            x = (right + key) & word
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & word
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & word
            left, right = right, left ^ ((x ^ (x >> 31)) & mask)
        position = (left << half) | right
        if position < size:
            return position


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 10**12), st.integers(0, 2**63 - 1), st.integers(0, 9), st.data())
def test_the_order_is_that_of_a_slow_walk_for_any_size(size, seed, epoch, data):
    place = data.draw(st.integers(0, size - 1))
    found = order.permute(np.asarray([place]), size, seed, epoch)
    assert found.tolist() == [slow_permutation(place, size, seed, epoch)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.integers(0, 100), st.integers(0, 40), st.integers(0, 9))
def test_any_stretch_of_the_run_is_a_stretch_of_the_whole(size, first, count, seed):
    whole = order.samples(0, 150, size, seed)
    assert order.samples(first, count, size, seed).tolist() == whole[first : first + count].tolist()


def test_reads_at_both_ends_of_a_store(tmp_path):
    store = text_store(tmp_path, [CAT] * 3, shard_tokens=4)
    assert len(store.read(0, 12)) == 12 and len(store.read(11, 1)) == 1
    for start, length in ((-1, 2), (0, 13), (12, 1)):
        with pytest.raises(IndexError, match=rf"tokens \[{start}, {start + length}\) of a store of 12"):
            store.read(start, length)


@pytest.mark.parametrize("kind", ["numbers", "words", "uuids"])
def test_drawn_values_differ_from_each_other_and_from_those_in_use(kind):
    taken = set()
    first = needles.distinct(Random(1), kind, 400, taken)
    second = needles.distinct(Random(1), kind, 400, taken)
    assert len({*first, *second}) == 800 == len(taken)
    assert needles.distinct(Random(1), kind, 0, taken) == []
    assert first == needles.distinct(Random(1), kind, 400, set())
    assert kind != "numbers" or all(len(v) == 7 and v.isdigit() for v in first)


def test_the_words_are_sorted_and_each_stands_once():
    assert list(needles.words()) == sorted(set(needles.words()))
    assert set(needles.categories()["verb"]) <= set(needles.words())


def test_nothing_left_names_every_reason(tmp_path):
    rows = [{"text": "cat"}, {"text": ""}, b"{", b"3"]
    part = text_slice(write_rows(tmp_path / "a.jsonl", rows), min_document_tokens=9)
    words = (
        r"1 shorter than min_document_tokens 9, 0 without a label, 1 blank, 2 broken\)\. Change data\.pretrain in the"
    )
    with pytest.raises(DataError, match=words):
        build(part, tmp_path)
    assert not list((tmp_path / "data/pretrain").glob("*.ds"))
