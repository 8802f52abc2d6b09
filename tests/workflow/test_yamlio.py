"""YAML scalars are what they look like, and a file that is no mapping is refused in one line."""

import math

import pytest

from iha.config.yaml import load_yaml
from iha.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    def _read(text: str | bytes):
        path = tmp_path / "c.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_yaml(path)

    return _read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4), ("1e5", 1e5), ("1E5", 1e5), ("0.1", 0.1), ("1e-1", 0.1), (".5", 0.5), ("1.", 1.0), ("-2.5", -2.5),
        ("240_000", 240_000), ("0", 0), ("-7", -7), ("+7", 7), ("12:30:00", "12:30:00"), ("1:30", "1:30"),
        ("no", "no"), ("yes", "yes"), ("on", "on"), ("true", True), ("False", False), ("010", "010"), ("0x10", "0x10"),
        ("2026-02-24", "2026-02-24"), ("~", None), ("null", None), ("", None), ("'1'", "1"), ("3e-4x", "3e-4x"),
        ("1_0.5", 10.5), (".inf", math.inf), ("1e", "1e"), ("e5", "e5"), ("-", None), ("0b1", "0b1"), ("1e400", math.inf),
    ],
)  # fmt: skip
def test_scalars(read, text, value):
    if text == "-":
        value = [None]
    got = read(f"a: {text}\n" if text != "-" else "a:\n  -\n")["a"]
    assert got == value
    assert type(got) is type(value)


def test_nan_is_a_number(read):
    assert math.isnan(read("a: .nan")["a"])


def test_equal_numbers_are_equal_however_written(read):
    assert read("a: 0.1") == read("a: 1e-1") == read("a: .1") == read("a: 1.0e-1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: !!binary aGVsbG8=", ["not valid YAML", "binary"]),
        ("a: !!set {1, 2}", ["not valid YAML", "set"]),
        ("a: !!int x", ["not valid YAML"]),
        ("a: !!bool x", ["not valid YAML"]),
        (f"a: {'9' * 5000}", ["not valid YAML", "digits"]),
        (f"a: {'[' * 1500}{']' * 1500}", ["not valid YAML", "recursion"]),
        ('a: "\\uD800"', ["not valid YAML", "surrogates"]),
        ("", ["is empty", "a mapping"]),
        ("- a", ["is a list", "a mapping"]),
        ("word", ["is a str", "a mapping"]),
        ("a: 1\nb: 2\na: 3", ["duplicate key 'a'", "line 3"]),
        ("a: {b: 1, b: 1}", ["duplicate key 'b'"]),
        ("a: [1", ["not valid YAML", "line"]),
        ("? [1, 2]\n: 3", ["a key must be one word", "line 1"]),
        ("a: !!python/object/apply:os.getcwd []", ["not valid YAML", "python/object"]),
        (b"a: \xff\xfe", ["not valid YAML"]),
        ("a: *nothing", ["not valid YAML", "nothing"]),
    ],
)
def test_what_is_refused_names_the_file(read, tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        read(text)
    for word in (str(tmp_path / "c.yaml"), *words):
        assert word in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read \(No such file"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path)


def test_anchors_and_merges(read):
    assert read("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}") == {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}
