"""Files of users as they come: encodings, wrong kinds, damaged records, columns of two layouts, sources that end."""

import codecs
import gzip
import json

import pyarrow as pa
import pytest
from datalab import SIZE, TEXT, build, chat_slice, text_slice, tokenizer, write_rows
from pyarrow import parquet

from iha.config.load import load_config
from iha.config.schema import FileSource, HubSource, SplitConfig, TokenizerConfig
from iha.data import tokenizer_build
from iha.data.corpus import Mixed, Tally, documents
from iha.data.files import read_records, read_rows
from iha.errors import ConfigError, DataError
from iha.planning import preflight


def read(*paths, field="text", form="text"):
    """Documents and counts of these files."""
    tally = Tally()
    source = FileSource(kind="files", paths=tuple(map(str, paths)), field=field)
    return list(documents(source, form=form, tally=tally)), tally


MARKS = {
    "utf-8-sig": codecs.BOM_UTF8,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
}


@pytest.mark.parametrize("encoding", MARKS)
def test_a_byte_order_mark_decides_the_encoding(tmp_path, encoding):
    text = "größer \u2028 日本 \U0001f600 \u0a0a\n"
    raw = MARKS[encoding] + text.encode(encoding.removesuffix("-sig"))
    (tmp_path / "a.txt").write_bytes(raw)
    assert read(tmp_path / "a.txt") == ([text], Tally(1))
    rows = json.dumps({"text": text}, ensure_ascii=False) + "\n" + json.dumps({"text": "two"}) + "\n"
    (tmp_path / "a.jsonl").write_bytes(MARKS[encoding] + rows.encode(encoding.removesuffix("-sig")))
    assert read(tmp_path / "a.jsonl") == ([text, "two"], Tally(2))
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as out:
        out.write((tmp_path / "a.jsonl").read_bytes())
    assert read(tmp_path / "b.jsonl.gz") == ([text, "two"], Tally(2))
    assert read_rows(tmp_path / "a.jsonl") == [{"text": text}, {"text": "two"}]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.txt", "naïve café".encode("cp1252")),
        ("a.txt", "日本語".encode("shift_jis")),
        ("a.jsonl", b'{"text": "caf\xe9"}\n'),
        ("a.jsonl", b'{"text": "cut \xf0\x9f\x98"}\n'),
        ("a.jsonl", b'{"text": "half \\ud83d"}\n'),
        ("a.jsonl", b'{"text": "low \\udc00 alone"}\n'),
    ],
)
def test_broken_characters_are_replaced_and_counted_in_every_kind_of_file(tmp_path, name, line):
    (tmp_path / name).write_bytes(line)
    texts, tally = read(tmp_path / name)
    assert "\ufffd" in texts[0]
    assert (tally.documents, tally.replaced, tally.broken) == (1, 1, 0)
    assert tally.problem
    texts[0].encode()


def test_broken_characters_of_conversations_are_counted_too(tmp_path):
    turns = [{"role": "user", "content": "a \ud800"}, {"role": "assistant", "content": "b"}]
    path = write_rows(tmp_path / "a.jsonl", [{"conversations": turns}])
    chats, tally = read(path, field="conversations", form="chat")
    assert chats[0][0]["content"] == "a \ufffd" and (tally.documents, tally.replaced) == (1, 1)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize(
    ("raw", "word"),
    [
        (gzip.compress(b'{"text": "x"}', mtime=0), "gzip"),  # workers must collect equal names
        (b"PAR1....", "Parquet"),
        (b"PK\x03\x04...", "zip"),
        (b"\x28\xb5\x2f\xfd...", "zstd"),
        ("plain".encode("utf-16-le"), "NUL"),
        (b"\x00\x01binary", "NUL"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_name(tmp_path, name, raw, word):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(DataError, match=rf"{name}.*{word}"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_field_that_no_record_has_names_those_of_the_first(tmp_path, name):
    path = write_rows(tmp_path / name, [{"content": "x", "id": 3}] * 5)
    with pytest.raises(DataError, match=rf"5 broken.*{name}, line 1 has no field 'text'; it has: content, id"):
        read(path)


def test_a_cell_of_a_table_that_is_not_utf_8_is_counted_and_its_neighbours_are_read(tmp_path):
    raw = pa.array([b"one", b"tw\xe9", b"three", None], pa.binary())
    text = pa.StringArray.from_buffers(4, raw.buffers()[1], raw.buffers()[2], raw.buffers()[0], raw.null_count)
    parquet.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    texts, tally = read(tmp_path / "a.parquet")
    assert texts == ["one", "tw\ufffd", "three"]
    assert (tally.documents, tally.broken, tally.replaced) == (3, 1, 1)


def test_tables_with_both_layouts_of_conversations_are_read(tmp_path):
    ours = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    theirs = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    pad = dict.fromkeys(("role", "content", "from", "value"))
    rows = [[{**pad, **turn} for turn in turns] for turns in (ours, theirs, ours)]
    parquet.write_table(pa.table({"conversations": rows}), tmp_path / "a.parquet")
    chats, tally = read(tmp_path / "a.parquet", field="conversations", form="chat")
    assert chats == [ours] * 3 and tally == Tally(3)
    path = write_rows(tmp_path / "b.jsonl", [{"conversations": turns} for turns in rows])
    assert read(path, field="conversations", form="chat")[0] == [ours] * 3


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (b'{"text": "two"}\n{"text": "caf\xe9"}', r"b\.jsonl, line 2: not UTF-8"),
        (b'{"text": "two"}\n\n{"text": "cut', r"b\.jsonl, line 3: not JSON"),
        (b'{"other": "column"}', r"b\.jsonl, line 1: columns other; needed: text"),
    ],
)
def test_a_damaged_local_hub_folder_is_one_message_with_file_and_line(tmp_path, monkeypatch, second, words):
    pytest.importorskip("datasets")
    write_rows(tmp_path / "org/set/train/a.jsonl", [{"text": "one"}])
    write_rows(tmp_path / "org/set/train/b.jsonl", [second])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=rf"'org/set'.*{words}"):
        list(documents(HubSource(kind="hub", name="org/set")))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"question": "\xe9"}', "line 2: not UTF-8"),
        (b"{", "line 2: not JSON"),
        (b"[1]", "line 2: no JSON object"),
        (b"[" * 99_999, "line 2: not JSON"),
    ],
)
def test_strict_records_are_refused_with_file_and_line(tmp_path, line, words):
    path = write_rows(tmp_path / "gsm8k_test.jsonl", [{"question": "x"}, line])
    with pytest.raises(DataError, match=rf"gsm8k_test\.jsonl, {words}"):
        list(read_records(path))


@pytest.mark.parametrize(
    ("name", "content"), [("none*.jsonl", None), ("x.json", b"{}"), ("x.csv", b"a"), ("x.txt.gz", b"")]
)
def test_a_source_that_matches_nothing_usable_is_refused_before_any_job(tmp_path, name, content):
    good = write_rows(tmp_path / "good.jsonl", [{"text": "x"}])
    if content is not None:
        (tmp_path / name).write_bytes(content)
    config = tmp_path / "config.yaml"
    for sources in (
        f"[{{kind: files, paths: ['{good}']}}, {{kind: files, paths: ['{tmp_path / name}']}}]",
        f"[{{kind: files, paths: ['{good}', '{tmp_path / name}']}}]",
    ):
        config.write_text(f"data: {{pretrain: {{sources: {sources}}}}}\n")
        with pytest.raises(ConfigError) as raised:
            preflight.check(load_config(config), "config.yaml")
        assert "data.pretrain.sources" in str(raised.value) and name in str(raised.value)


def hub_folder(folder, **changes):
    spec = json.loads((tokenizer().folder / "tokenizer.json").read_text())
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps({**spec, **changes}))
    return TokenizerConfig(kind="hub", name=str(folder), vocab_size=SIZE)


def test_truncation_and_padding_of_a_hub_tokenizer_are_switched_off(tmp_path, caplog):
    truncation = {"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0}
    padding = {"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
               "pad_type_id": 0, "pad_token": "!"}  # fmt: skip
    for name, pattern in (("fast", None), ("slow", r"\w+|\W")):
        changes = {"truncation": truncation, "padding": padding}
        if pattern:
            spec = json.loads((tokenizer().folder / "tokenizer.json").read_text())
            spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
            changes["pre_tokenizer"] = spec["pre_tokenizer"]
        tok = tokenizer_build.build(hub_folder(tmp_path / name, **changes), [], tmp_path / f"{name}-out")
        assert tok.fast == (pattern is None)
        assert tok.decode(tok.encode_text(TEXT * 9)) == TEXT * 9
        ids, mask = tok.encode_chat([{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}])
        assert len(ids) > 500 and sum(mask) > 250
    assert "truncation" in caplog.text and "padding" in caplog.text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"normalizer": {"type": "Lowercase"}}, "give a text back"),
        ({"normalizer": {"type": "NFKC"}}, "give a text back"),
    ],
)
def test_a_tokenizer_that_changes_text_is_refused(tmp_path, changes, word):
    spec = json.loads((tokenizer().folder / "tokenizer.json").read_text())
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\w+|\W"  # encoded by `tokenizers`
    config = hub_folder(tmp_path / "hub", pre_tokenizer=spec["pre_tokenizer"], **changes)
    with pytest.raises(DataError, match=word):
        tokenizer_build.build(config, [], tmp_path / "out")
    assert not (tmp_path / "out" / "ids.json").exists()


def test_a_store_counts_each_of_its_sources(tmp_path, caplog):
    caplog.set_level("INFO")
    a = write_rows(tmp_path / "a.jsonl", [{"text": "cat hats"}, {"text": ""}, b"{", b'{"text": "\xff"}'] * 2)
    b = write_rows(tmp_path / "b.jsonl", [{"text": "cat"}] * 6)
    sources = tuple(FileSource(kind="files", paths=(str(p),), weight=w) for p, w in ((a, 3.0), (b, 1.0)))
    part = text_slice(a).model_copy(update={"data": SplitConfig(sources=sources, max_tokens=1000)})
    made = build(part, tmp_path)
    first, second = made.metadata["sources"]
    assert {k: first[k] for k in ("documents", "empty", "broken", "replaced")} == {
        "documents": 4, "empty": 2, "broken": 2, "replaced": 2}  # fmt: skip
    assert (second["documents"], second["broken"]) == (6, 0)
    assert first["tokens"] + second["tokens"] == made.metadata["n_tokens"]
    assert first["share"] == {"asked": 0.75, "reached": 0.4} and second["share"]["reached"] == 0.6
    assert made.metadata["n_replaced"] == 2
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert any("a.jsonl" in w and "40.0 %" in w and "75.0 %" in w for w in warnings)
    assert any("a.jsonl, line 3" in w for w in warnings)
    assert any("max_tokens" in w and "1,000" in w and str(made.metadata["n_tokens"]) in w for w in warnings)
    assert not any("b.jsonl ended" in w for w in warnings)


def test_a_source_that_reaches_its_share_is_no_warning(tmp_path, caplog):
    a, b = (write_rows(tmp_path / f"{n}.jsonl", [{"text": "cat hats"}] * 30) for n in "ab")
    sources = tuple(FileSource(kind="files", paths=(str(p),), weight=w) for p, w in ((a, 2.0), (b, 1.0)))
    part = text_slice(a).model_copy(update={"data": SplitConfig(sources=sources, max_tokens=60)})
    build(part, tmp_path)
    part = part.model_copy(
        update={"data": SplitConfig(sources=tuple(s.model_copy(update={"weight": 1.0}) for s in sources))}
    )
    build(part, tmp_path)
    assert not [r for r in caplog.records if r.levelname == "WARNING"]


@pytest.mark.parametrize("n", [1, 3])
def test_counts_by_source_do_not_depend_on_workers(tmp_path, n, monkeypatch):
    from iha.data import tokenise

    monkeypatch.setattr(tokenise, "BATCH_CHARS", 20)
    paths = [
        write_rows(tmp_path / f"{i}.jsonl", [{"text": f"cat {i} {j}"} for j in range(20)] + [b"{"]) for i in range(3)
    ]
    sources = tuple(FileSource(kind="files", paths=(str(p),), weight=i + 1.0) for i, p in enumerate(paths))
    part = text_slice(paths[0]).model_copy(update={"data": SplitConfig(sources=sources, max_tokens=150)})
    rows = build(part, tmp_path / str(n), n).metadata["sources"]
    assert rows == build(part, tmp_path / "one").metadata["sources"]
    mixed = Mixed(part.data)
    for _, _document in zip(range(sum(r["documents"] for r in rows)), mixed, strict=False):
        pass
    assert [r["documents"] for r in rows] == [t.documents for t in mixed.tallies]


def test_conversations_are_counted_by_source_too(tmp_path):
    turns = [{"role": "user", "content": "hats"}, {"role": "assistant", "content": "seven"}]
    part = chat_slice(write_rows(tmp_path / "c.jsonl", [{"conversations": turns}] * 3 + [{"conversations": 3}]), 48)
    (row,) = build(part, tmp_path).metadata["sources"]
    assert (row["documents"], row["broken"]) == (3, 1) and row["tokens"] > 0
