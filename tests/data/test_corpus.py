"""Corpora: order, mixing, what is counted and what is refused."""

import sys

import pytest
from datalab import write_rows

from iha.config.schema import (
    BookSource,
    DocstringSource,
    FileSource,
    HubSource,
    NeedleSource,
    SplitConfig,
    TemplateSource,
)
from iha.data import corpus, offline
from iha.data import files as found_files
from iha.data.corpus import Mixed, Tally, documents
from iha.errors import DataError


def files(*paths, field="text", weight=1.0):
    return FileSource(kind="files", paths=tuple(map(str, paths)), field=field, weight=weight)


def test_blank_and_broken_records_are_counted_not_fatal(tmp_path):
    rows = [
        {"text": "one"},
        {"text": ""},
        {"text": " \n"},
        b'{"text": "cut',
        {"text": None},
        {"other": 1},
        [1],
        {"text": "two"},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    tally = Tally()
    assert list(documents(files(path), tally=tally)) == ["one", "two"]
    assert tally == Tally(documents=2, empty=2, broken=4)


def test_files_come_in_sorted_order_whatever_the_listing(tmp_path, monkeypatch):
    for i in (3, 1, 2):
        write_rows(tmp_path / f"{i}.jsonl", [{"text": str(i)}])
    source = files(tmp_path / "*.jsonl", tmp_path / "1.jsonl")
    straight = list(documents(source))
    listing = found_files.glob
    monkeypatch.setattr(found_files, "glob", lambda *a, **k: listing(*a, **k)[::-1])
    assert list(documents(source)) == straight == ["1", "2", "3"]


def test_every_kind_of_file_is_read(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    write_rows(tmp_path / "1.jsonl.gz", [{"text": "gz"}])
    parquet.write_table(pa.table({"text": ["pq", None]}), tmp_path / "2.parquet")
    (tmp_path / "3.txt").write_bytes(b"plain \xff\n")
    tally = Tally()
    assert list(documents(files(tmp_path / "*"), tally=tally)) == ["gz", "pq", "plain \ufffd\n"]
    assert tally.broken == 1


@pytest.mark.parametrize(
    ("name", "message"), [("x.csv", "unknown kind"), ("x.txt.gz", "unknown kind"), ("none*", "nothing matches")]
)
def test_files_that_cannot_be_used_are_refused(tmp_path, name, message):
    (tmp_path / "x.csv").touch()
    (tmp_path / "x.txt.gz").touch()
    with pytest.raises(DataError, match=message):
        list(documents(files(tmp_path / name)))


def test_a_wrong_field_is_refused_with_the_counts(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"content": "x"}])
    with pytest.raises(DataError, match=r"no usable text document .* 1 broken"):
        list(documents(files(path)))


def test_a_wrong_parquet_column_names_the_columns(tmp_path):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"content": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column 'text'; allowed: content"):
        list(documents(files(tmp_path / "a.parquet")))


def test_a_local_folder_of_the_hub_name_is_streamed(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    write_rows(tmp_path / "org/set/train.jsonl", [{"content": "one"}, {"content": "two"}])
    monkeypatch.chdir(tmp_path)
    source = HubSource(kind="hub", name="org/set", field="content")
    assert list(documents(source)) == ["one", "two"]
    with pytest.raises(DataError, match="field is 'text'; allowed: content"):
        list(documents(HubSource(kind="hub", name="org/set")))


def test_a_hub_set_that_is_not_there_is_refused_in_one_message(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="'no/such_set': cannot be opened"):
        list(documents(HubSource(kind="hub", name="no/such_set")))


def test_sources_are_mixed_by_weight_and_end_one_by_one(tmp_path):
    a = write_rows(tmp_path / "a.jsonl", [{"text": f"a{i}"} for i in range(6)])
    b = write_rows(tmp_path / "b.jsonl", [{"text": f"b{i}"} for i in range(20)])
    split = SplitConfig(sources=(files(a, weight=0.6), files(b, weight=0.2)))
    found = list(Mixed(split))
    assert found == list(Mixed(split))
    assert sum(d.startswith("a") for d in found[:8]) == 6
    assert len(set(found)) == 26
    assert found[8:] == [f"b{i}" for i in range(2, 20)]


def test_the_tally_runs_over_all_sources(tmp_path):
    a = write_rows(tmp_path / "a.jsonl", [{"text": "a"}, {"text": ""}])
    b = write_rows(tmp_path / "b.jsonl", [{"text": "b"}, b"{", {"text": "c"}])
    mixed = Mixed(SplitConfig(sources=(files(a), files(b))))
    assert len(list(mixed)) == 3
    assert mixed.tally() == Tally(documents=3, empty=1, broken=1)


def test_hub_sets_are_described_by_their_commit(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    (tmp_path / "org/local").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    asked = []

    def info(self, name, *, revision, timeout):
        asked.append((name, revision))
        if name == "org/gone":
            raise OSError("no network")
        return hub.hf_api.DatasetInfo(id=name, sha="0123abcd", tags=[])

    monkeypatch.setattr(hub.HfApi, "dataset_info", info)
    sources = [HubSource(kind="hub", name=f"org/{n}", revision="v1") for n in ("there", "gone", "local")]
    found = corpus.describe(SplitConfig(sources=tuple(sources)))
    assert found == {"org/gone": "v1 (OSError)", "org/local": "local folder", "org/there": "0123abcd"}
    assert asked == [("org/there", "v1"), ("org/gone", "v1")]


def package(folder, name):
    """A package that must not be imported, with docstrings to keep, to drop and to de-duplicate."""
    long = "Explains at length what it does. " * 10
    (folder / name / "tests").mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f'"""{long}"""\nraise RuntimeError("imported")\n')
    nested = f'class A:\n    """{long}A"""\n    def f(self):\n        """short"""\n'
    nested += f'if True:\n    try:\n        def g():\n            """{long}G"""\n    except E:\n        def h():\n            """{long}G"""\n'
    (folder / name / "a.py").write_text(nested)
    (folder / name / "broken.py").write_text("def (")
    (folder / name / "tests" / "b.py").write_text(f'"""{long}T"""')
    (folder / name / "test_c.py").write_text(f'"""{long}C"""')
    return long.strip()


def test_docstrings_are_read_without_importing_each_once_and_without_tests(tmp_path, monkeypatch):
    long = package(tmp_path, "padded")
    monkeypatch.syspath_prepend(tmp_path)
    found = list(offline.docstrings(["padded", "padded"]))
    assert sorted(found) == sorted([long, long + " A", long + " G"])
    assert "padded" not in sys.modules


def test_an_absent_package_is_refused_with_the_way_to_install_it():
    with pytest.raises(DataError, match="pip install nosuchpackage"):
        list(documents(DocstringSource(kind="docstrings", packages=("nosuchpackage",))))


def test_docstrings_of_an_installed_package_and_their_versions():
    source = DocstringSource(kind="docstrings", packages=("networkx", "sklearn"))
    first = [next(documents(source)) for _ in range(2)]
    assert first[0] == first[1]
    assert len(first[0]) >= 200
    versions = corpus.describe(SplitConfig(sources=(source,)))
    assert set(versions) == {"networkx", "scikit-learn"}
    assert "missing" not in versions.values()


def test_the_book_has_its_66_books():
    books = list(documents(BookSource(kind="book")))
    assert len(books) == 66
    assert books[0].startswith("In the beginning God created")
    assert books[1].startswith("Now these [are] the names of the children of Israel")
    assert books[-1].endswith("Amen.")
    assert sum(map(len, books)) > 4_000_000


def test_templates_make_text_and_conversations():
    source = TemplateSource(kind="templates", count=7)
    texts, chats = list(documents(source)), list(documents(source, form="chat"))
    assert len(texts) == len(chats) == 7
    assert texts[0].startswith("Question: ")
    assert [m["role"] for m in chats[0]] == ["user", "assistant"]
    assert chats[0][1]["content"].startswith("<think>\n")


def test_needle_texts_hide_ask_and_give_a_number_of_their_own():
    source = NeedleSource(kind="needles", count=40, lines=3)
    made = list(documents(source, seed=3))
    assert len(made) == 40 == len(set(made))
    for text in made:
        question, value = text.rsplit(" mentioned in the provided text is ", 1)
        key = question.rsplit(" for ", 1)[1]
        assert text.count(f"One of the special magic numbers for {key} is: {value}") == 1
    assert made != list(documents(source, seed=4)) and made == list(documents(source, seed=3))
