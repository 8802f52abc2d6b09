"""Evaluation items inside training text."""

from datalab import TEXT, build, chat_slice, text_store, tokenizer, write_rows

from iha.data.contamination import Index, scan, words
from iha.data.store import TokenStore

QUESTION = (
    "A robe takes 2 bolts of blue fiber and half that much white fiber.  How many bolts in total does it take? "
    "Weng earns $12 an hour for babysitting."
)


def test_one_embedded_question_is_one_hit_with_shard_and_offset(tmp_path):
    texts = [TEXT] * 3 + [f"Forum:\n{QUESTION.upper().replace('?', ' ...')}\nBye"] + [TEXT] * 2
    store = text_store(tmp_path, texts, shard_tokens=900)
    report = scan(store, tokenizer(), {"gsm8k/1": QUESTION, "gsm8k/2": QUESTION[::-1]})
    (hit,) = report.hits
    assert (report.checked, report.too_short) == (2, 0)
    assert hit.item == "gsm8k/1"
    shard = [path.name for path in store.paths].index(hit.shard)
    start = int(store.starts[shard]) + hit.offset
    assert hit.offset in [0, *store.document_ends(shard).tolist()]
    assert tokenizer().decode(store.read(start, 30).tolist()).startswith("Forum:\nA ROBE")
    assert hit.words == " ".join(words(QUESTION)[:13])
    assert report.metadata()["hits"][0]["shard"] == hit.shard


def test_processes_find_the_same(tmp_path):
    store = text_store(tmp_path, [TEXT, QUESTION, TEXT, TEXT, QUESTION], shard_tokens=200)
    items = {"q": QUESTION}
    assert scan(store, tokenizer(), items, workers=2) == scan(store, tokenizer(), items)
    assert len(scan(store, tokenizer(), items).hits) == 2


def test_twelve_words_in_a_row_are_no_copy_and_thirteen_are():
    index = Index({"q": QUESTION})
    found = words(QUESTION)
    assert not index.matches(" ".join(found[:12]) + " x " + " ".join(found[13:25]))
    assert index.matches("x " + " ".join(found[3:16]))


def test_short_items_are_looked_for_whole_and_very_short_ones_are_counted():
    index = Index({"short": "one two three four five six seven eight nine", "tiny": "What is 2 plus 2?"})
    assert (index.checked, index.too_short) == (1, 1)
    assert index.matches("zero one two three four five six seven eight nine ten") == {
        "short": "one two three four five six seven eight nine"
    }
    assert not index.matches("one two three four five six seven eight ten")


def test_rows_of_a_packed_store_are_searched(tmp_path):
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "seven hats " * 9}]
    rows = [{"conversations": [{"role": "user", "content": "hats"}, turns[1]]}, {"conversations": turns}]
    manifest = build(chat_slice(write_rows(tmp_path / "c.jsonl", rows), 256), tmp_path)
    report = scan(TokenStore.open(manifest, tmp_path), tokenizer(), {"q": QUESTION})
    assert [(hit.item, hit.offset) for hit in report.hits] == [("q", 0)]
