"""How much of a corpus is enough: tokens of kept documents, and a training that reads its store more than once."""

import pytest
import torch
from datalab import TEXT, build, chat_slice, text_slice, tokenizer, write_rows
from trainlab import plain_store, recipe, train_slice

from iha.artifacts.run import Context
from iha.config.schema import HubSource, SplitConfig
from iha.data import corpus, workers
from iha.train.distributed import World
from iha.train.recipes import _batches
from iha.train.run import Run

LONG = len(tokenizer().encode_text(TEXT)) + 2


@pytest.mark.parametrize("n_workers", [1, 2])
def test_max_tokens_counts_only_documents_that_are_long_enough(tmp_path, monkeypatch, n_workers):
    monkeypatch.setattr(workers, "BATCH_CHARS", 2000)
    rows = [{"text": text} for _ in range(9) for text in (*["cat hats"] * 60, TEXT)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    part = text_slice(path, min_document_tokens=LONG, max_tokens=3 * LONG)
    facts = build(part, tmp_path, n_workers).facts
    assert (facts["n_docs"], facts["n_tokens"], facts["n_short"]) == (3, 3 * LONG, 180)
    used = text_slice(write_rows(tmp_path / "used.jsonl", rows[:183]), min_document_tokens=LONG)
    assert facts == build(used, tmp_path / "used").facts, "what is dropped still counts as read"


def test_max_tokens_counts_only_conversations_with_a_label(tmp_path):
    answer = {"role": "assistant", "content": "e e e e"}
    whole, cut = ([{"role": "user", "content": "hats " * n}, answer] for n in (1, 100))
    rows = [{"conversations": turns} for _ in range(9) for turns in (cut, cut, whole)]
    part = chat_slice(write_rows(tmp_path / "a.jsonl", rows), 64)
    kept = len(tokenizer().encode_chat(whole)[0])
    part = part.model_copy(update={"data": part.data.model_copy(update={"max_tokens": 2 * kept})})
    facts = build(part, tmp_path).facts
    assert (facts["n_docs"], facts["n_unlabelled"]) == (2, 4)


def test_the_files_of_a_local_hub_folder_are_stamped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_rows(tmp_path / "org/set/deep/train.jsonl", [{"text": "one"}])
    split = SplitConfig(sources=(HubSource(kind="hub", name="org/set"), HubSource(kind="hub", name="no/such")))
    before = corpus.file_stamps(split)
    assert before == {"org/set/deep/train.jsonl": [path.stat().st_size, path.stat().st_mtime_ns]}
    write_rows(path, [{"text": "another"}])
    assert corpus.file_stamps(split) != before


@pytest.mark.parametrize(("steps", "rank", "said"), [(15, 0, 0), (16, 0, 1), (16, 1, 0)])
def test_a_run_that_reads_its_store_more_than_once_says_so(tmp_path, caplog, steps, rank, said):
    store = plain_store(tmp_path, tokens=15 * 4 * 64 + 1)
    context = Context(tmp_path / "m.json", tmp_path, {"store": store}, "", "t", 1, "cpu")
    world = World(rank, 2, torch.device("cpu"))
    _batches(Run(train_slice(recipe=recipe(steps=steps)), context, world))
    lines = [record.getMessage() for record in caplog.records if record.name == "iha"]
    assert lines == ["pretrain global seed 1: 1.07 epochs: 64 samples of a store of 60."] * said
