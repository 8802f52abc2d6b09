"""How much of a corpus is read: tokens of kept documents."""

import pytest
from datalab import TEXT, build, chat_slice, text_slice, tokenizer, write_rows

from iha.config.schema import HubSource, SplitConfig
from iha.data import corpus, tokenise

LONG = len(tokenizer().encode_text(TEXT)) + 2


@pytest.mark.parametrize("n_workers", [1, 2])
def test_max_tokens_counts_only_documents_that_are_long_enough(tmp_path, monkeypatch, n_workers):
    monkeypatch.setattr(tokenise, "BATCH_CHARS", 2000)
    rows = [{"text": text} for _ in range(9) for text in (*["cat hats"] * 60, TEXT)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    part = text_slice(path, min_document_tokens=LONG, max_tokens=3 * LONG)
    facts = build(part, tmp_path, n_workers).metadata
    assert (facts["n_docs"], facts["n_tokens"], facts["n_short"]) == (3, 3 * LONG, 180)
    used = text_slice(write_rows(tmp_path / "used.jsonl", rows[:183]), min_document_tokens=LONG)
    other = build(used, tmp_path / "used").metadata
    assert other.pop("sources")[0]["documents"] == facts.pop("sources")[0]["documents"] == 183
    assert facts == other, "what is dropped still counts as read"


def test_max_tokens_counts_only_conversations_with_a_label(tmp_path):
    answer = {"role": "assistant", "content": "e e e e"}
    whole, cut = ([{"role": "user", "content": "hats " * n}, answer] for n in (1, 100))
    rows = [{"conversations": turns} for _ in range(9) for turns in (cut, cut, whole)]
    part = chat_slice(write_rows(tmp_path / "a.jsonl", rows), 64)
    kept = len(tokenizer().encode_chat(whole)[0])
    part = part.model_copy(update={"data": part.data.model_copy(update={"max_tokens": 2 * kept})})
    facts = build(part, tmp_path).metadata
    assert (facts["n_docs"], facts["n_unlabelled"]) == (2, 4)


def test_the_files_of_a_local_hub_folder_are_stamped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_rows(tmp_path / "org/set/deep/train.jsonl", [{"text": "one"}])
    split = SplitConfig(sources=(HubSource(kind="hub", name="org/set"), HubSource(kind="hub", name="no/such")))
    before = corpus.file_stamps(split)
    assert before == {"org/set/deep/train.jsonl": [path.stat().st_size, path.stat().st_mtime_ns]}
    write_rows(path, [{"text": "another"}])
    assert corpus.file_stamps(split) != before
