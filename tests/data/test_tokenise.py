"""Token stores: boundaries, types, the same bytes for any number of workers and after any crash."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from datalab import TEXT, WORDS, build, chat_slice, shard_bytes, text_slice, text_store, tokenizer, write_rows

from iha.artifacts.manifest import FileEntry, Manifest, read_manifest, verify_files
from iha.data import files as found_files
from iha.data import tokenise
from iha.data.store import TokenStore
from iha.data.tokenise import Build, Piece
from iha.errors import DataError

PARENT = os.getpid()


def documents_of(store):
    """The ids of each document, from the index."""
    found = []
    for shard, start in enumerate(store.starts[:-1].tolist()):
        ends = store.document_ends(shard).tolist()
        found += [store.read(start + a, b - a).tolist() for a, b in zip([0, *ends], ends, strict=False)]
    return found


def test_every_document_has_its_bos_and_its_eos(tmp_path):
    tok, texts = tokenizer(), ["the cat", "<|end_of_text|>", "hats"]
    store = text_store(tmp_path, texts)
    assert documents_of(store) == [[tok.bos, *tok.encode_text(text), tok.eos] for text in texts]


def test_boundaries_survive_truncation_and_blank_documents(tmp_path):
    tok = tokenizer()
    five, three = "cat cat cat cat cat", "cat cat cat"
    assert (len(tok.encode_text(five)), len(tok.encode_text(three))) == (5, 3)
    store = text_store(tmp_path, [five, "", three, " \n\t"], max_document_tokens=4)
    assert store.document_ends(0).tolist() == [4, 8]
    ids = store.read(0, 8).tolist()
    assert [i for i, token in enumerate(ids) if token == tok.eos] == [3, 7]
    assert [i for i, token in enumerate(ids) if token == tok.bos] == [0, 4]
    assert (store.metadata["n_docs"], store.metadata["n_empty"], store.n_tokens) == (2, 2, 8)


def wide_store(state, ids, vocab_size=128_256, **changed):
    """A store written from ids, without a tokenizer."""
    built = Build("")
    built.add(state, state, Piece(np.asarray(ids, np.uint32)), iter(()), 10)
    facts = {"dtype": "uint32", "seq_len": 0, "vocab_size": vocab_size, "eos": 128_001, "shards": built.shards}
    facts |= {"max_id": built.counts.max_id} | changed
    return Manifest(stage="tokenise", slice={}, code="0", files=built.files, metadata=facts)


def test_ids_above_16_bits_are_kept(tmp_path):
    ids = [65_535, 65_536, 65_537, 128_000, 128_009]
    store = TokenStore.open(wide_store(tmp_path, ids), tmp_path)
    assert store.dtype == np.uint32
    assert store.read(0, 5).tolist() == ids


def test_a_document_of_more_than_65535_tokens_is_one_document(tmp_path):
    store = text_store(tmp_path, ["cat" + " cat" * 65_534], shard_tokens=1000)
    assert store.document_ends(0).tolist() == [65_537]


def test_a_shard_read_as_another_type_is_refused(tmp_path):
    with pytest.raises(DataError, match="is not 1 ids of uint16"):
        TokenStore.open(wide_store(tmp_path, [128_000], dtype="uint16"), tmp_path)


def test_an_id_outside_the_vocabulary_is_refused(tmp_path):
    with pytest.raises(DataError, match="id 128256 is outside the vocabulary 128256"):
        TokenStore.open(wide_store(tmp_path, [1, 128_256]), tmp_path)


def test_a_lost_cut_or_changed_shard_is_refused(tmp_path):
    text_store(tmp_path, [TEXT])
    manifest = build(text_slice(tmp_path / "corpus.jsonl"), tmp_path)
    path = tmp_path / "data/pretrain/shard_00000.ds"
    whole = path.read_bytes()
    path.write_bytes(whole[:-2])
    with pytest.raises(DataError, match=r"shard_00000\.ds: differs"):
        TokenStore.open(manifest, tmp_path)
    path.write_bytes(b"\x01\x00" + whole[2:])
    TokenStore.open(manifest, tmp_path)
    with pytest.raises(DataError, match=r"shard_00000\.ds: differs"):
        TokenStore.open(manifest, tmp_path, deep=True)
    path.unlink()
    with pytest.raises(DataError, match="missing"):
        TokenStore.open(manifest, tmp_path)


def test_the_manifest_describes_every_file_and_counts(tmp_path):
    store = text_store(tmp_path, [TEXT[:400]] * 5 + ["e"], shard_tokens=300, min_document_tokens=10)
    manifest = build(text_slice(tmp_path / "corpus.jsonl", shard_tokens=300, min_document_tokens=10), tmp_path)
    verify_files(manifest, tmp_path, deep=True)
    assert {Path(entry.path).name for entry in manifest.files.values()} == set(shard_bytes(tmp_path))
    facts = manifest.metadata
    assert (facts["n_docs"], facts["n_short"]) == (5, 1)
    assert sum(shard["docs"] for shard in facts["shards"]) == 5
    assert sum(shard["tokens"] for shard in facts["shards"]) == facts["n_tokens"] == store.n_tokens
    assert len(facts["shards"]) > 1
    assert facts["tokenizer_sha256"] == tokenizer().sha256
    assert facts["max_id"] == max(map(max, documents_of(store)))


def test_max_tokens_stops_after_a_whole_document(tmp_path):
    tok = tokenizer()
    length = len(tok.encode_text(TEXT)) + 2
    store = text_store(tmp_path, [TEXT] * 9, max_tokens=length + 1)
    assert store.n_tokens == 2 * length


def test_what_is_read_ahead_for_workers_is_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "BATCH_CHARS", 10)
    rows = [row for i in range(50) for row in ({"text": f"cat {i}"}, {"text": ""}, b"{")]
    part = text_slice(write_rows(tmp_path / "a.jsonl", rows), max_tokens=20)
    facts = [build(part, tmp_path / str(n), n).metadata for n in (1, 3)]
    assert facts[0] == facts[1]
    assert facts[0]["n_docs"] < 10
    assert facts[0]["n_empty"] == facts[0]["n_broken"] == facts[0]["n_docs"] - 1


def test_a_store_of_nothing_is_refused_with_the_counts(tmp_path):
    with pytest.raises(DataError, match=r"no document is left \(2 shorter than min_document_tokens 50"):
        text_store(tmp_path, ["e", "e", ""], min_document_tokens=50)


def test_a_smaller_build_leaves_no_file_of_the_larger_one(tmp_path):
    text_store(tmp_path, [TEXT] * 8, shard_tokens=200)
    before = set(shard_bytes(tmp_path))
    (tmp_path / "data/pretrain/.shard_00000.ds.0badcafe.tmp").write_bytes(b"half")
    text_store(tmp_path, [TEXT], shard_tokens=200)
    assert set(shard_bytes(tmp_path)) < before


def ten(folder):
    """Ten documents over four files, each with its number spelled out."""
    for k in range(4):
        rows = [{"text": f"document {i}: {' '.join(WORDS[: 3 + i])}"} for i in range(10) if i % 4 == k]
        write_rows(folder / f"part{k}.jsonl", rows)
    return text_slice(folder / "*.jsonl", shard_tokens=60)


def test_each_document_once_and_the_same_bytes_for_1_and_4_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "BATCH_CHARS", 30)
    part = ten(tmp_path / "in")
    one, four = (build(part, tmp_path / str(n), n) for n in (1, 4))
    assert one.metadata == four.metadata
    assert one.metadata["n_docs"] == 10
    assert shard_bytes(tmp_path / "1") == shard_bytes(tmp_path / "4")
    texts = [tokenizer().decode(ids) for ids in documents_of(TokenStore.open(one, tmp_path / "1"))]
    assert sorted(int(text.split(":")[0].split()[1]) for text in texts) == list(range(10))


def test_the_same_bytes_for_a_reversed_listing(tmp_path, monkeypatch):
    part = ten(tmp_path / "in")
    build(part, tmp_path / "straight")
    listing = found_files.glob
    monkeypatch.setattr(found_files, "glob", lambda *a, **k: listing(*a, **k)[::-1])
    build(part, tmp_path / "reversed")
    assert shard_bytes(tmp_path / "straight") == shard_bytes(tmp_path / "reversed")


def _suicidal(self, batch, first=tokenise.Encoder.__call__, parent=PARENT):
    """Dies with SIGKILL on its second batch, in a worker."""
    if os.getpid() != parent and getattr(self, "worked", False):
        os.kill(os.getpid(), signal.SIGKILL)
    self.worked = True
    return first(self, batch)


def test_the_same_bytes_after_a_worker_is_killed(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tokenise, "BATCH_CHARS", 30)
    part = ten(tmp_path / "in")
    build(part, tmp_path / "whole")
    monkeypatch.setattr(tokenise.Encoder, "__call__", _suicidal)
    build(part, tmp_path / "killed", 2)
    assert "a tokenising process died" in caplog.text
    assert shard_bytes(tmp_path / "whole") == shard_bytes(tmp_path / "killed")


def _doomed(self, batch):
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_always_die_end_in_one_message(tmp_path, monkeypatch):
    part = ten(tmp_path / "in")
    monkeypatch.setattr(tokenise.Encoder, "__call__", _doomed)
    monkeypatch.setattr(tokenise, "RESTARTS", 0)
    with pytest.raises(DataError, match=r"a tokenising process died 1 times.*runtime\.workers"):
        build(part, tmp_path, 2)


def stage(part, state, *, threads=2):
    """Start the stage as Snakemake would."""
    state.mkdir(parents=True, exist_ok=True)
    if not (state / "tokenizer").exists():
        (state / "tokenizer").symlink_to(tokenizer().folder)
    arguments = {
        "slice": part.model_dump_json(),
        "code": "0",
        "output": state / "m.json",
        "state": state,
        "experiment": "t",
    }
    line = [word for name, value in arguments.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", "iha.stages.tokenise", *line, "--threads", str(threads)],
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_same_bytes_after_the_whole_stage_is_killed(tmp_path):
    rows = [{"text": f"{i} {TEXT}"} for i in range(1200)]
    part = text_slice(write_rows(tmp_path / "big.jsonl", rows), shard_tokens=20_000)
    state, first = tmp_path / "state", tmp_path / "state/data/pretrain/shard_00001.ds"
    process = stage(part, state)
    while not first.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.005)
    children = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    assert not (state / "m.json").exists()
    assert not psutil.wait_procs(children, timeout=10)[1], "workers outlive their parent"
    for path in state.glob("data/pretrain/shard_*.ds"):
        assert path.stat().st_size >= 2 * 20_000, "half a shard under its final name"
    assert "resuming after" in stage(part, state).communicate()[1]
    clean = build(part, tmp_path / "clean")
    assert shard_bytes(state) == shard_bytes(tmp_path / "clean")
    manifest = read_manifest(state / "m.json")
    assert manifest.metadata == clean.metadata
    assert manifest.files == clean.files


def test_the_stage_imports_neither_torch_nor_transformers():
    code = "import sys, iha.stages.tokenise, iha.stages.tokenizer; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "datasets", "tokenizers"} & set(loaded)


def test_the_stage_names_an_unusable_source_and_exits_2(tmp_path):
    process = stage(text_slice(tmp_path / "none.jsonl"), tmp_path / "state")
    assert "data source files: nothing matches" in process.communicate()[1]
    assert process.returncode == 2


def test_windows_and_reads_cross_shards(tmp_path):
    store = text_store(tmp_path, [TEXT[: 40 * i] for i in range(1, 20)], shard_tokens=100)
    assert len(store.paths) > 3
    stream = np.concatenate([np.fromfile(path, store.dtype) for path in store.paths])
    starts = np.arange(0, store.n_tokens - 250, 37)
    assert np.array_equal(store.windows(starts, 250), np.stack([stream[s : s + 250] for s in starts.tolist()]))
    assert np.array_equal(store.read(0, store.n_tokens), stream)
    with pytest.raises(IndexError):
        store.read(store.n_tokens - 1, 2)


def test_datatrove_reads_the_shards(tmp_path):
    datasets = pytest.importorskip("datatrove.utils.dataset")
    store = text_store(tmp_path, [TEXT] * 4, shard_tokens=10**6)
    theirs = datasets.DatatroveFolderDataset(str(tmp_path / "data/pretrain"), seq_len=64, token_size=2)
    for i in (0, 3, len(theirs) - 1):
        assert theirs[i]["input_ids"].tolist() == store.read(i * 65, 65).tolist()


def test_a_packed_store_has_labels_and_documents_beside_each_token(tmp_path):
    tok = tokenizer()
    turns = [[{"from": "human", "value": f"hats {i}"}, {"from": "gpt", "value": "seven " * (i % 7)}] for i in range(30)]
    path = write_rows(tmp_path / "chat.jsonl", [{"conversations": t} for t in turns] + [{"conversations": "no"}])
    manifest = build(chat_slice(path, 64, shard_tokens=256), tmp_path)
    store = TokenStore.open(manifest, tmp_path, deep=True)
    facts = manifest.metadata
    assert (facts["n_broken"], facts["n_empty"], facts["n_docs"]) == (1, 5, 25)
    assert store.n_tokens % 64 == 0
    rows = [store.windows(np.arange(0, store.n_tokens, 64), 64, kind) for kind in ("ds", "mask", "doc")]
    ids, mask, docs = rows
    assert mask.sum() == facts["n_labels"]
    assert (ids == tok.bos).sum() == 25
    assert ((ids == tok.eot) & (mask == 1)).sum() == 25
    assert (ids == tok.pad).sum() == facts["n_padding"]
    assert ((ids == tok.bos) == (np.diff(docs.astype(int), axis=1, prepend=-1) == 1) & (ids != tok.pad)).all()


def test_workers_change_nothing_in_a_packed_store(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenise, "BATCH_CHARS", 50)
    turns = [[{"role": "user", "content": "hats"}, {"role": "assistant", "content": "e " * (i % 9)}] for i in range(40)]
    part = chat_slice(write_rows(tmp_path / "chat.jsonl", [{"conversations": t} for t in turns]), 32, 64)
    one, three = (build(part, tmp_path / str(n), n) for n in (1, 3))
    assert one == three
    assert shard_bytes(tmp_path / "1", "sft") == shard_bytes(tmp_path / "3", "sft")


def test_the_manifest_is_json_without_clock_times(tmp_path):
    part = text_slice(write_rows(tmp_path / "a.jsonl", [{"text": TEXT}]))
    first, second = (build(part, tmp_path / name).model_dump_json() for name in ("a", "b"))
    assert first == second
    assert all(isinstance(entry, FileEntry) for entry in build(part, tmp_path / "c").files.values())
    assert json.loads(first)["metadata"]["dtype"] == "uint16"


class Killed(Exception):
    """Stands for the end of the process."""


def stop_after(monkeypatch, shards):
    """A build ends without a word after so many shards."""
    whole = Build.save

    def save(self, folder):
        whole(self, folder)
        if len(self.shards) == shards:
            raise Killed

    monkeypatch.setattr(Build, "save", save)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("workers_then", [1, 2])
def test_a_build_goes_on_after_its_last_shard_with_the_same_manifest(tmp_path, monkeypatch, shards, workers_then):
    rows = [row for i in range(40) for row in ({"text": f"cat {i} {TEXT[: i * 20]}"}, {"text": ""}, b"{")]
    part = text_slice(write_rows(tmp_path / "a.jsonl", rows), shard_tokens=900, min_document_tokens=20)
    clean = build(part, tmp_path / "clean")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(patch, shards)
        build(part, tmp_path / "cut")
    encoded = []
    first = tokenise.Encoder.__call__
    monkeypatch.setattr(
        tokenise.Encoder, "__call__", lambda self, batch: (encoded.extend(batch), first(self, batch))[1]
    )
    assert build(part, tmp_path / "cut", workers_then) == clean
    assert shard_bytes(tmp_path / "cut") == shard_bytes(tmp_path / "clean")
    if workers_then == 1:
        done = sum(shard["docs"] for shard in clean.metadata["shards"][:shards]) + clean.metadata["n_short"]
        assert len(encoded) == 40 - done


def test_a_build_that_had_only_to_write_its_manifest_encodes_nothing_twice(tmp_path, monkeypatch):
    part = text_slice(write_rows(tmp_path / "a.jsonl", [{"text": "cat hats"}] * 9), max_tokens=12)
    clean = build(part, tmp_path / "clean")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(patch, 1)
        build(part, tmp_path / "cut")
    monkeypatch.setattr(tokenise.Encoder, "__call__", None)
    assert build(part, tmp_path / "cut") == clean


@pytest.mark.parametrize("change", ["slice", "code", "cut", "bit", "gone", "journal", "file"])
def test_another_build_is_not_continued(tmp_path, monkeypatch, caplog, change):
    path = write_rows(tmp_path / "a.jsonl", [{"text": f"cat {i} {TEXT[: i * 20]}"} for i in range(30)])
    part, state = text_slice(path, shard_tokens=900), tmp_path / "state"
    with monkeypatch.context() as patch, pytest.raises(Killed):
        stop_after(patch, 2)
        tokenise.build(part, tokenizer(), state, 1, "code")
    folder = state / "data/pretrain"
    first = folder / "shard_00000.ds"
    if change == "cut":
        first.write_bytes(first.read_bytes()[:-2])
    if change == "bit":  # of its size
        first.write_bytes(bytes([first.read_bytes()[0] ^ 1]) + first.read_bytes()[1:])
    if change == "gone":
        first.unlink()
    if change == "journal":
        (folder / "progress.json").write_text('{"key": ')
    if change == "file":
        write_rows(path, [{"text": f"hats {i} {TEXT[: i * 20]}"} for i in range(30)])
    other = part.model_copy(update={"shard_tokens": 800}) if change == "slice" else part
    built = tokenise.build(other, tokenizer(), state, 1, "other" if change == "code" else "code")
    clean = tokenise.build(other, tokenizer(), tmp_path / "clean", 1)
    assert built == clean
    assert "resuming" not in caplog.text
    assert ("shard_00000.ds: not as it was written" in caplog.text) == (change in ("cut", "bit", "gone"))
    assert shard_bytes(state) == shard_bytes(tmp_path / "clean")
