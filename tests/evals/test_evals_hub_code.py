"""Code of an exported folder: rewritten imports, what cannot be carried, padding, loss and caches behind transformers."""

from __future__ import annotations

import ast
import json
import sys

import pytest
import torch
from datalab import SIZE, tokenizer
from evallab import KINDS, MODEL, net
from torch.nn import functional

from iha.errors import ConfigError, DataError, UserError
from iha.evals.lm import IhaLM
from iha.export import _rewritten, export_model, flat_name, flat_sources, hub_config
from iha.model.files import check_tokenizer, read_header, save_model, tokenizer_of
from iha.variants.base import spec_class

SOURCE = '''"""Doc: from pack.sub import x stays."""
import importlib
from pack.sub.other import (
    One,
    two as deux,
)
from pack import sub
from . import other as o
from .other import One as Un
from .. import top
from ..top import deep
import os
if True:
    from pack.sub import other
text = "from pack.sub import other"
'''
WANTED = '''"""Doc: from pack.sub import x stays."""
from . import iha_importlib as importlib
from .pack_sub_other import One
from .pack_sub_other import two as deux
from . import pack_sub as sub
from . import pack_sub_other as o
from .pack_sub_other import One as Un
from . import pack_top as top
from .pack_top import deep
import os
if True:
    from . import pack_sub_other as other
text = "from pack.sub import other"
'''
CARRIED = frozenset(("pack.sub", "pack.sub.other", "pack.top", "pack.sub.mod"))


@pytest.fixture
def pack(tmp_path, monkeypatch):
    folder = tmp_path / "pack/sub"
    folder.mkdir(parents=True)
    for path in (folder / "__init__.py", folder.parent / "__init__.py"):
        path.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pack", raising=False)
    monkeypatch.delitem(sys.modules, "pack.sub", raising=False)

    def rewrite(source, name="mod"):
        (folder / f"{name}.py").write_text(source)
        return _rewritten(f"pack.sub.{name}" if name != "__init__" else "pack.sub", CARRIED)

    return rewrite


def test_imports_of_carried_modules_are_rewritten_and_nothing_else(pack):
    assert pack(SOURCE) == WANTED


def test_in_a_package_one_dot_is_the_package_itself(pack):
    assert pack("from .other import One\nfrom ..top import x\n", "__init__") == (
        "from .pack_sub_other import One\nfrom .pack_top import x\n"
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("import pack.sub.other", r"pack\.sub\.mod, line 2: `import pack\.sub\.other`; write `from \.\.\. import"),
        ("import os, pack.top", "`import os, pack.top`"),
        ("from pack import sub, stranger", "line 2: imports carried and other modules in one statement; split it"),
    ],
)
def test_an_import_that_cannot_be_carried_is_named_with_its_line(pack, line, words):
    with pytest.raises(UserError, match=words):
        pack(f"x = 1\n{line}\n")


@pytest.mark.parametrize("name", ["nowhere_at_all", "bare"])
def test_a_module_without_source_is_refused(tmp_path, monkeypatch, name):
    (tmp_path / "bare").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=f"{name}: its source cannot be read, so the model cannot be exported with it"):
        _rewritten(name, frozenset())


def test_a_folder_holds_every_module_that_its_modules_import():
    """Whatever a file imports from its folder is a file of the folder, and none of them names the project."""
    for kind in KINDS:
        files = flat_sources(spec_class(kind))
        assert files == flat_sources(spec_class(kind)), "equal bytes on repetition"
        for name, text in files.items():
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and node.level:
                    wanted = [f"{node.module}.py"] if node.module else [f"{alias.name}.py" for alias in node.names]
                    assert set(wanted) <= set(files), name
                elif isinstance(node, ast.ImportFrom):
                    assert not (node.module or "").startswith("iha."), name
    assert flat_name("iha.model.attention.iha") == "iha_model_attention_iha"


def test_the_nearest_tokenizer_is_taken_and_its_absence_named(tmp_path):
    model = tmp_path / "state/runs/iha/final"
    model.mkdir(parents=True)
    with pytest.raises(
        DataError, match=r"no tokenizer in it and no folder `tokenizer` above it; name one: --tokenizer"
    ):
        tokenizer_of(model)
    for place in ("state/tokenizer", "state/runs/tokenizer"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "ids.json").touch()
        assert tokenizer_of(model) == tmp_path / place
    (model / "ids.json").mkdir()
    assert tokenizer_of(model) == tmp_path / "state/runs/tokenizer", "a folder of that name is no file"
    (model / "ids.json").rmdir()
    (model / "ids.json").touch()
    assert tokenizer_of(model) == model


def test_a_header_need_not_name_a_tokenizer(tmp_path):
    check_tokenizer(tmp_path, {"extra": {}}, tokenizer().folder, tokenizer().sha256)
    check_tokenizer(tmp_path, {"extra": {"tokenizer": tokenizer().sha256}}, tokenizer().folder, tokenizer().sha256)
    with pytest.raises(DataError, match="trained with tokenizer 000000000000, but"):
        check_tokenizer(tmp_path, {"extra": {"tokenizer": "0" * 64}}, tokenizer().folder, tokenizer().sha256)


def test_an_export_describes_the_model_and_touches_no_folder_that_is_there(tmp_path):
    save_model(net("diff"), tmp_path / "model", {})
    header = read_header(tmp_path / "model")
    config = hub_config(header, tokenizer(), None)
    assert (
        config["max_position_embeddings"] == 8 * 64
        and hub_config(header, tokenizer(), 9)["max_position_embeddings"] == 9
    )
    assert (config["vocab_size"], config["attention"]["kind"]) == (SIZE, "diff")
    assert config["model"]["hidden_dim"] == MODEL.hidden_dim and config["tie_word_embeddings"] is MODEL.tie_embeddings
    export_model(tmp_path / "model", tmp_path / "folder1", tokenizer().folder)
    export_model(tmp_path / "model", tmp_path / "folder2", tokenizer().folder)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("folder1", "folder2"))
    assert one.pop("README.md").replace(b"folder1", b"folder2") == two.pop("README.md") and one == two
    (tmp_path / "full").mkdir()
    with pytest.raises(ConfigError, match=r"full: exists; nothing is overwritten\. Name another folder"):
        export_model(tmp_path / "model", tmp_path / "full", tokenizer().folder)
    assert list((tmp_path / "full").iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            {"path": "x", "pth": 1, "lenght": 2},
            "--model_args: lenght, pth: unknown; allowed: path, tokenizer, max_length",
        ),
        ({}, "--model_args: path: missing; allowed: path"),
    ],
)
def test_wrong_model_arguments_are_named(arguments, words):
    with pytest.raises(ConfigError, match=words):
        IhaLM.create_from_arg_obj(arguments)


def test_model_arguments_have_defaults(tmp_path):
    save_model(net("diff"), tmp_path, {})
    base = {"path": tmp_path, "tokenizer": tokenizer().folder}
    made = IhaLM.create_from_arg_obj(base, {"batch_size": "auto:4", "device": "cuda:0"})
    assert (made.max_length, made.batch_size, made.seed) == (8 * 64, 16, 0)
    assert next(made.model.parameters()).device.type in ("cpu", "cuda")
    made = IhaLM.create_from_arg_obj({**base, "batch_size": "3", "seed": "7", "max_length": "99"}, {"batch_size": 5})
    assert (made.max_length, made.batch_size, made.seed) == (99, 3, 7), "the model's own argument wins"
    assert (made.eot_token_id, made.prefix_token_id) == (tokenizer().eos, tokenizer().bos)
    assert made.tokenizer_name == tokenizer().sha256
    assert (made.chat_template(True), made.chat_template(), made.chat_template("x")) == ("llama3", None, "llama3")


@pytest.fixture(scope="module")
def theirs():
    """The model behind transformers' interface, and ours with the same weights."""
    from iha.model.hub import IhaConfig, IhaForCausalLM

    attention = json.loads(net("iha").spec.model_dump_json())
    config = IhaConfig(json.loads(MODEL.model_dump_json()), attention, SIZE, 64)
    model = IhaForCausalLM(config).eval()
    model.model.load_state_dict(net("iha").state_dict())
    return model


TOKENS = torch.tensor([[3, 14, 15, 9, 26, 5], [35, 8, 9, 7, 9, 3]])


def test_its_logits_are_ours_and_may_be_asked_for_the_last_positions(theirs):
    with torch.no_grad():
        ours = net("iha")(TOKENS)
        assert torch.equal(theirs(TOKENS).logits, ours)
        assert torch.equal(theirs(TOKENS, logits_to_keep=2).logits, theirs(TOKENS).logits[:, -2:])
    assert theirs.get_input_embeddings().weight.shape == (SIZE, MODEL.hidden_dim)


def test_its_loss_is_the_mean_over_the_labelled_next_tokens(theirs):
    labels = TOKENS.clone()
    labels[:, :3] = -100
    with torch.no_grad():
        found = theirs(TOKENS, labels=labels)
        plain = functional.cross_entropy(found.logits[:, 2:-1].reshape(-1, SIZE).double(), TOKENS[:, 3:].reshape(-1))
    assert found.loss.item() == pytest.approx(plain.item(), abs=1e-5)


def test_a_cache_goes_on_where_it_stands_and_its_rows_can_be_reordered(theirs):
    from iha.model.hub import _CACHE

    with torch.no_grad():
        whole = theirs(TOKENS).logits
        first = theirs(TOKENS[:, :4], use_cache=True)
        cache = first[_CACHE]
        assert cache.get_seq_length() == 4
        cache.reorder_cache(torch.tensor([1, 0]))
        rest = theirs(TOKENS[[1, 0], 4:], **{_CACHE: cache}).logits
    torch.testing.assert_close(rest, whole[[1, 0], 4:], rtol=0, atol=1e-4)
    assert cache.get_seq_length() == 6


@pytest.mark.parametrize(
    ("mask", "right", "pads"),
    [
        (None, False, None),
        ([[1, 1, 1]], False, None),
        ([[0, 0, 1], [1, 1, 1]], False, [2, 0]),
        ([[1, 1, 0], [1, 1, 1]], True, None),
        ([[0, 1, 0], [1, 1, 1]], True, [1, 0]),
    ],
)
def test_padding_on_the_left_is_counted(mask, right, pads):
    from iha.model.hub import left_padding

    found = left_padding(None if mask is None else torch.tensor(mask), right_allowed=right)
    assert (None if found is None else found.tolist()) == pads


@pytest.mark.parametrize(("mask", "right"), [([[1, 0, 1]], True), ([[0, 1, 0, 1]], True), ([[1, 1, 0]], False)])
def test_padding_elsewhere_is_refused(mask, right):
    from iha.model.hub import left_padding

    with pytest.raises(ValueError, match=r"attention_mask: pad on the left \(padding_side='left'\)"):
        left_padding(torch.tensor(mask), right_allowed=right)


def test_padding_changes_no_logits_of_the_tokens(theirs):
    padded = torch.cat((torch.full((2, 3), tokenizer().pad), TOKENS), 1)
    mask = torch.cat((torch.zeros(2, 3), torch.ones(2, 6)), 1).long()
    with torch.no_grad():
        found = theirs(padded, attention_mask=mask).logits[:, 3:]
        torch.testing.assert_close(found, theirs(TOKENS).logits, rtol=0, atol=1e-4)
