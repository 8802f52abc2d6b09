"""Input that is damaged, odd or empty: what is skipped and counted, what is refused, and with which words."""

from __future__ import annotations

import json

import pytest
from datalab import SIZE, tokenizer, write_rows

from iha.config.schema import DocstringSource, FileSource, NeedleSource, SplitConfig, TemplateSource, TokenizerConfig
from iha.data import corpus, tokenizer_build
from iha.data.corpus import Mixed, Tally, documents
from iha.data.files import matching, read_rows
from iha.data.tokenizer import Tokenizer
from iha.errors import DataError


def files(*paths, **changes):
    return FileSource(kind="files", paths=tuple(map(str, paths)), **changes)


def cut(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    return path


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl.gz", b"no zip\n", "BadGzipFile"),
        ("a.jsonl.gz", None, "EOFError"),
        ("a.parquet", b"PAR1 and no more", "ArrowInvalid"),
    ],
)
def test_a_damaged_file_is_refused_by_name_not_read_in_part(tmp_path, name, content, why):
    path = tmp_path / name
    if content is None:
        cut(write_rows(path, [{"text": f"cat {i} " * 9} for i in range(3000)]), -300)
    else:
        path.write_bytes(content)
    words = rf"{name}: cannot be read to its end \({why}: .*Replace the file, or take it out of paths in the config"
    with pytest.raises(DataError, match=words):
        list(documents(files(path)))


def test_a_bit_error_in_a_zipped_file_is_refused(tmp_path):
    path = write_rows(tmp_path / "a.jsonl.gz", [{"text": f"cat {i * i}"} for i in range(3000)])
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2 : len(raw) // 2 + 8] = bytes(8)
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"a\.jsonl\.gz: cannot be read to its end"):
        list(documents(files(path)))


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"text": "a", "n": ' + b"9" * 5000 + b"}", b"3", b"null", b'"text"', b"{}"],
    ids=range(6),
)
def test_a_record_that_cannot_be_read_is_counted_and_the_next_one_read(tmp_path, line):
    tally = Tally()
    path = write_rows(tmp_path / "a.jsonl", [line, {"text": "two"}])
    assert list(documents(files(path), tally=tally)) == ["two"]
    assert tally == Tally(documents=1, empty=0, broken=1)


def test_windows_line_ends_a_byte_order_mark_and_a_missing_last_line_end_are_no_matter(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "one\\r\\n"}\r\n\r\n{"text": "two\xe2\x80\xa8three"}')
    assert list(documents(files(path))) == ["one\r\n", "two\u2028three"]


def test_an_empty_file_beside_a_full_one_is_nothing(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "b.txt").write_text(" \n")
    path = write_rows(tmp_path / "c.jsonl", [{"text": "x"}])
    tally = Tally()
    assert list(documents(files(tmp_path / "*"), tally=tally)) == ["x"] and tally.empty == 1
    path.unlink()
    with pytest.raises(DataError, match=r"no usable text document \(1 blank, 0 broken\)\. Change the source"):
        list(documents(files(tmp_path / "*")))


def test_half_a_surrogate_pair_becomes_a_text_that_can_be_written(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [b'{"text": "ok \\ud83d end \\ud83d\\ude00"}'])
    assert list(documents(files(path))) == ["ok \ufffd end \U0001f600"]


def test_a_folder_is_no_file_and_a_file_met_twice_counts_once(tmp_path):
    (tmp_path / "deep/x.jsonl").mkdir(parents=True)
    path = write_rows(tmp_path / "deep/y.jsonl", [{"text": "y"}])
    assert matching([f"{tmp_path}/**", f"{tmp_path}/deep/*.jsonl", str(path)]) == [path]
    assert matching([]) == matching([f"{tmp_path}/none"]) == []


def test_a_row_that_is_not_json_is_named_by_its_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a":\n')
    with pytest.raises(DataError, match=r"rows\.jsonl, line 3: not JSON .*Correct the line"):
        read_rows(path)
    path.write_text('{"a": 1}\r\n\n2')
    assert read_rows(path) == [{"a": 1}, 2]


def test_a_source_that_ends_leaves_the_others_in_their_shares(tmp_path):
    """Weights 3 : 2 : 1 over the first 6n documents, for every n: no source is ever a whole document behind."""
    names = {"a": 3.0, "b": 2.0, "c": 1.0}
    paths = {n: write_rows(tmp_path / f"{n}.jsonl", [{"text": f"{n}{i}"} for i in range(60)]) for n in names}
    found = list(Mixed(SplitConfig(sources=tuple(files(paths[n], weight=w) for n, w in names.items()))))
    for n in range(1, 20):
        assert [sum(d[0] == name for d in found[: 6 * n]) for name in names] == [3 * n, 2 * n, n]
    for name in names:
        assert [d for d in found if d[0] == name] == [f"{name}{i}" for i in range(60)], "each in its own order"


@pytest.mark.parametrize("form", ["text", "chat"])
def test_generated_sources_give_as_many_as_asked_and_tasks_take_turns(form):
    for count in (1, 2, 5):
        found = list(documents(TemplateSource(kind="templates", count=count), seed=3, form=form))
        assert len(found) == count
        assert found == list(documents(TemplateSource(kind="templates", count=count), seed=3, form=form))
    asked = [str(d) for d in documents(TemplateSource(kind="templates", count=6), form=form)]
    marks = ("Question: ", "Problem:", "expert Python programmer")
    assert [[mark in text for mark in marks].index(True) for text in asked] == [0, 1, 2, 0, 1, 2]
    alone = list(documents(TemplateSource(kind="templates", tasks=("mbpp",), count=3), form="text"))
    assert all("expert Python programmer" in text for text in alone)


def test_needles_are_no_conversations(tmp_path):
    with pytest.raises(DataError, match=r"needles: no usable chat document \(0 blank, 2 broken\)"):
        list(documents(NeedleSource(kind="needles", count=2), form="chat"))


def test_a_package_without_a_version_is_described_as_missing():
    split = SplitConfig(sources=(DocstringSource(kind="docstrings", packages=("no_such_package_here",)),))
    assert corpus.describe(split) == {"no_such_package_here": "missing"}


@pytest.mark.parametrize(
    ("text", "why"),
    [("{", "JSONDecodeError"), ("{}", "KeyError"), ("[]", "TypeError"), ('{"added_tokens": []}', "KeyError")],
)
def test_a_hub_folder_with_a_broken_tokenizer_is_refused_and_nothing_written(tmp_path, text, why):
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/tokenizer.json").write_text(text)
    config = TokenizerConfig(kind="hub", name=str(tmp_path / "hub"), vocab_size=9)
    with pytest.raises(DataError, match=rf"tokenizer\.name: .*hub' has a tokenizer\.json that is none \({why}"):
        tokenizer_build.build(config, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_control_tokens_names_those_it_lacks(tmp_path):
    spec = json.loads((tokenizer().folder / "tokenizer.json").read_text())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != "<|eot_id|>"]
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub/tokenizer.json").write_text(json.dumps(spec))
    config = TokenizerConfig(kind="hub", name=str(tmp_path / "hub"), vocab_size=SIZE)
    with pytest.raises(DataError, match=r"lacks \['<\|eot_id\|>'\]; needed: tokenizer\.vocab_size 340 entries"):
        tokenizer_build.build(config, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["cut", "gone", "key"])
def test_a_tokenizer_folder_that_lost_something_is_refused(tmp_path, change):
    for path in tokenizer().folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ids = tmp_path / "ids.json"
    if change == "cut":
        cut(ids, -9)
    elif change == "gone":
        (tmp_path / "ranks.tiktoken").unlink()
    else:
        ids.write_text(ids.read_text().replace('"n_text"', '"other"'))
    with pytest.raises(DataError, match=r"not a tokenizer folder of this project \(.*Rerun its stage"):
        Tokenizer.load(tmp_path)


def test_the_origin_of_a_tokenizer_is_told_before_it_is_made():
    assert tokenizer_build.origin(TokenizerConfig(kind="bpe", vocab_size=1024)) == (
        "byte-level BPE of 1,024 entries, trained on the spot"
    )
    hub = TokenizerConfig(kind="hub", name=str(tokenizer().folder), vocab_size=SIZE)
    assert tokenizer_build.origin(hub) == f"hub {tokenizer().folder}: {tokenizer().n_text:,} text tokens"
