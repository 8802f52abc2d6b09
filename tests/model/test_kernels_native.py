"""The C++ kernels' builder: compiled once, kept by content, and never more than a missing kernel."""

from __future__ import annotations

import ctypes
import os
import shutil

import pytest
import torch

from iha import native

SOURCE = '#include "vector.h"\nextern "C" int answer() { return %s; }\n'
LANES = """
#include "vector.h"
extern "C" void exps(const float* x, float* y, long n) {
  for (long i = 0; i < n; i += LANES) store(y + i, exponential(load(x + i)));
}
extern "C" float total(const float* x) { return sum(load(x)); }
extern "C" int lanes() { return LANES; }
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """Builds a source into a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    native.library.cache_clear()

    def made(text, name="tiny"):
        source = tmp_path / f"{name}.cpp"
        source.write_text(text)
        native.library.cache_clear()
        return native.library(source)

    yield made
    native.library.cache_clear()


compiled = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler")


def kept(tmp_path):
    return sorted(p.name for p in (tmp_path / "cache").rglob("*") if p.is_file())


@compiled
def test_a_kernel_is_compiled_once_and_again_only_when_its_code_is_another(build, tmp_path, monkeypatch):
    assert build(SOURCE % 41).answer() == 41
    (first,) = kept(tmp_path)
    assert first.startswith("tiny-") and first.endswith(".so")
    path = tmp_path / "cache" / "iha" / first
    stamp = path.stat().st_mtime_ns
    assert build(SOURCE % 41).answer() == 41
    assert (kept(tmp_path), path.stat().st_mtime_ns) == ([first], stamp)
    assert build(SOURCE % 42).answer() == 42
    other = tmp_path / "include" / "vector.h"
    other.parent.mkdir()
    other.write_text(native.HEADER.read_text() + "\n// another\n")
    monkeypatch.setattr(native, "HEADER", other)
    assert build(SOURCE % 41).answer() == 41
    assert len(kept(tmp_path)) == 3, "the header is part of the code"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'line one' >&2; echo 'tiny.cpp:2: no such thing' >&2; exit 1", "tiny.cpp:2: no such thing"),
        ("echo half > $last; exit 3", "non-zero exit status 3"),
        ("exit 0", "No such file"),
        ("echo 'no library' > $last", "tiny-"),
    ],
    ids=["refuses", "half", "nothing", "garbage"],
)
def test_a_compiler_that_fails_is_said_once_in_its_words_and_the_kernel_done_without(
    build, tmp_path, monkeypatch, caplog, script, words
):
    caplog.set_level("INFO", "iha")
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\nfor last; do :; done\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert build(SOURCE % 1) is None
    assert native.library(tmp_path / "tiny.cpp") is None
    (said,) = [r.getMessage() for r in caplog.records]
    assert said.startswith("The C++ kernel tiny is done without (") and words in said and "line one" not in said
    whole = [name for name in kept(tmp_path) if name.endswith(".so")]
    assert len(whole) == (words == "tiny-"), "only what a compiler calls done has a name"


def test_a_cache_that_cannot_be_written_is_no_error(build, tmp_path, caplog):
    caplog.set_level("INFO", "iha")
    (tmp_path / "cache").write_text("a file, no folder")
    assert build(SOURCE % 1) is None
    assert "kernel tiny is done without" in caplog.text


@compiled
def test_the_vector_header_adds_up_and_its_exponential_is_right_to_two_units(build):
    lib = build(LANES, "lanes")
    width = lib.lanes()
    x = torch.cat([-torch.logspace(-9, 1.93, 4000), torch.tensor([0.0, -0.0, -86.9, -87.1, -1e9, -torch.inf])])
    x = torch.nn.functional.pad(x, (0, -len(x) % width)).contiguous()
    y = torch.empty_like(x)
    lib.exps(*native.addresses(x, y), ctypes.c_long(len(x)))
    want, alive = x.double().exp(), x > -87
    assert ((y.double() - want).abs()[alive] <= 2 * torch.finfo(torch.float32).eps * want[alive]).all()
    assert not y[~alive].any(), "what is hidden has weight 0"
    lib.total.restype = ctypes.c_float
    assert lib.total(*native.addresses(torch.arange(float(width)))) == width * (width - 1) / 2
