"""Conversations: labels, truncation, think parts, packing, and data sets that must be refused."""

import numpy as np
import pytest
from datalab import build, chat_slice, tokenizer, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from iha.data import packing
from iha.data.chat import LabelCheck, conversation, label
from iha.data.packing import Packer, Row, row_arrays
from iha.errors import DataError

USER, ANSWER = {"role": "user", "content": "hats"}, {"role": "assistant", "content": "seven"}


def chats(folder, conversations):
    return write_rows(folder / "chat.jsonl", [{"conversations": turns} for turns in conversations])


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        ([{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], ["user", "assistant"]),
        ([{"from": "system", "value": "s"}, {"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}], ["system", "user", "assistant"]),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], ["user", "assistant"]),
    ],
)  # fmt: skip
def test_both_layouts_are_read(record, wanted):
    assert [turn["role"] for turn in conversation(record)] == wanted


@pytest.mark.parametrize(
    "record", ["text", None, 3, [1], [{"role": "robot", "content": "x"}], [{"role": "user", "content": None}]]
)
def test_what_is_no_conversation_is_broken(record):
    assert conversation(record) is None


@pytest.mark.parametrize("record", [[], [USER], [USER, {"role": "assistant", "content": " \n"}]])
def test_a_conversation_without_an_answer_is_empty(record):
    assert conversation(record) == []


def test_only_assistant_text_and_its_end_are_trained():
    tok = tokenizer()
    found = label(tok, [USER, ANSWER, USER, ANSWER], 100)
    trained = [token for token, on in zip(found.ids, found.mask, strict=True) if on]
    assert trained == [*tok.encode_text("seven"), tok.eot] * 2


def test_a_row_without_labels_is_dropped_and_counted(tmp_path):
    long = {"role": "user", "content": "hats " * 200}
    manifest = build(chat_slice(chats(tmp_path, [[USER, ANSWER]] * 9 + [[long, ANSWER]]), 64), tmp_path)
    assert (manifest.metadata["n_unlabelled"], manifest.metadata["n_docs"], manifest.metadata["n_cut"]) == (1, 9, 1)


def test_a_data_set_without_a_label_is_refused(tmp_path):
    long = {"role": "user", "content": "hats " * 200}
    with pytest.raises(DataError, match=r"data\.sft: 0\.0% of the tokens of the first 3"):
        build(chat_slice(chats(tmp_path, [[long, ANSWER]] * 3), 64), tmp_path)


def test_a_data_set_without_assistant_turns_is_refused(tmp_path):
    with pytest.raises(DataError, match="no usable chat document"):
        build(chat_slice(chats(tmp_path, [[USER]] * 3), 64), tmp_path)


def test_the_share_of_labels_is_checked_once_on_100_conversations():
    check = LabelCheck()
    for _ in range(99):
        check.add(100, 4)
    with pytest.raises(DataError, match=r"4\.0% .* between 5% and 99%"):
        check.add(100, 4)
    good = LabelCheck()
    for _ in range(100):
        good.add(100, 40)
    good.add(100, 0)
    assert (good.seen, good.labels) == (100, 4000)


def test_a_data_set_that_trains_on_everything_is_refused():
    check = LabelCheck()
    check.add(100, 100)
    with pytest.raises(DataError, match=r"100\.0%"):
        check.verify()


def test_labels_do_not_depend_on_the_pad_id():
    tok = tokenizer()
    row = Row(8)
    row.add([1, 2, 3, 10, 11, tok.eos], [False] * 3 + [True] * 3)
    ids, mask, docs = row_arrays(row, 8, tok.eos, np.uint16)
    labels = [int(i) if on else -100 for i, on in zip(ids, mask, strict=True)]
    assert labels == [-100, -100, -100, 10, 11, tok.eos, -100, -100]
    assert docs.tolist() == [0] * 6 + [1] * 2


def test_a_cut_answer_gets_no_end_and_is_counted(tmp_path):
    tok = tokenizer()
    long = {"role": "assistant", "content": "seven hats " * 40}
    found = label(tok, [USER, long], 32)
    assert found.cut
    assert len(found.ids) == 32
    assert tok.eot not in [token for token, on in zip(found.ids, found.mask, strict=True) if on]
    manifest = build(chat_slice(chats(tmp_path, [[USER, long], [USER, ANSWER]]), 32), tmp_path)
    assert manifest.metadata["n_cut"] == 1


def test_an_answer_that_just_fits_keeps_its_end():
    tok = tokenizer()
    whole = label(tok, [USER, ANSWER], 1000)
    exact = label(tok, [USER, ANSWER], len(whole.ids))
    assert not exact.cut
    assert exact.ids[-1] == tok.eot
    assert exact.mask[-1]


def test_reasoning_stays_in_every_turn_and_none_is_added():
    tok = tokenizer()
    thought = {"role": "assistant", "content": "<think>\nthe cat sat\n</think>\n\nhats"}
    found = label(tok, conversation([USER, thought, USER, ANSWER]), 1000)
    trained = tok.decode([token for token, on in zip(found.ids, found.mask, strict=True) if on])
    assert trained == thought["content"] + "seven"
    assert tok.decode(found.ids).count("<think>") == 1


lengths = st.lists(st.integers(1, 40), min_size=1, max_size=300)


@settings(max_examples=60, deadline=None)
@given(lengths)
def test_packing_places_every_conversation_once_whole_and_is_deterministic(sizes):
    def pack():
        packer, rows = Packer(40), []
        for number, size in enumerate(sizes):
            rows += packer.add([number] * size, [True] * size)
        return rows + list(packer.flush())

    rows = pack()
    assert all(len(row.ids) <= 40 and len(row.ids) + row.room == 40 for row in rows)
    placed = sorted((number, row.ids.count(number)) for row in rows for number in set(row.ids))
    assert placed == list(enumerate(sizes))
    assert [row.ids for row in rows] == [row.ids for row in pack()]
    for row in rows:
        assert [b - a for a, b in zip(row.docs, row.docs[1:], strict=False) if a != b] == [1] * (row.n_docs - 1)


def test_packing_wastes_little():
    rng = np.random.default_rng(0)
    packer, rows = Packer(512), []
    sizes = rng.integers(20, 400, 2000).tolist()
    for size in sizes:
        rows += packer.add([1] * size, [True] * size)
    rows += packer.flush()
    assert sum(sizes) / (512 * len(rows)) > 0.93
    assert len(rows) > packing.OPEN_ROWS
