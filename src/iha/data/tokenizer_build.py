"""Build a tokenizer folder: trained on the corpus, from the llama-models package, or from the hub.

A trained vocabulary gets the structure of Llama 3's tokenizer: tokens are ranks, every split of a token into two
tokens is a merge, and a word in the vocabulary is one token. So one file serves both `tokenizers` and tiktoken.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from iha.artifacts.manifest import atomic_path, write_json
from iha.config.schema import TokenizerConfig
from iha.data.tokenizer import BOS, CONTROL, EOS, EOT, PAD, PATTERN, Tokenizer, read_ranks, write_ranks
from iha.errors import DataError

log = logging.getLogger("iha")

#: Llama 3's chat layout, with the assistant's part between generation marks.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{%- if message['role'] == 'assistant' %}"
    "{%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}"
    "{%- else %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
)
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "ids.json")

#: Blanks, line ends, digits, contractions, scripts without blanks, emoji with joiners, control text.
TORTURE = (
    "It's  DON'T we'Ll\t\ttabs \r\n\r\n  x=3.14159e-10; 1234567 a1b22c333 \u00e9\u0301 \u4f60\u597d\u4e16\u754c "
    "\u0645\u0631\u062d\u0628\u0627 \U0001f468\u200d\U0001f469\u200d\U0001f467 aaaaaaaaa          b !!!???\n\n\n"
    "<|eot_id|> <|end_of_text|> \u2028 \ufeff #include <x>\n\tdef f(x):\n        return x**2\n" + " " * 83 + "\n" * 7
)

#: Characters that Unicode normalisation (NFC, NFKC) or lower-casing changes.
UNNORMALISED = "e\u0301 \ufb01 \u2460 \u212b ABC "


@cache
def _byte_chars() -> dict[int, str]:
    """GPT-2's printable character for each byte, as used by ByteLevel vocabularies."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {b: chr(b) for b in kept}
    return table | {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in table)}


def _spell(token: bytes) -> str:
    return "".join(map(_byte_chars().__getitem__, token))


def _unspell(token: str) -> bytes:
    back = {char: byte for byte, char in _byte_chars().items()}
    return bytes(back[char] for char in token)


def train_tokens(texts: Iterable[str], size: int) -> list[bytes]:
    """Byte-level BPE tokens in rank order, at most `size`. The same texts give the same tokens, on any machine."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    return [_unspell(token) for token, _ in sorted(bpe.get_vocab().items(), key=lambda pair: pair[1])]


def _merges(tokens: Sequence[bytes]) -> Iterator[list[str]]:
    ranks = {token: rank for rank, token in enumerate(tokens)}
    for token in tokens:
        halves = ((token[:i], token[i:]) for i in range(1, len(token)))
        known = [(ranks[a], ranks[b]) for a, b in halves if a in ranks and b in ranks]
        for left, right in sorted(known):
            yield [_spell(tokens[left]), _spell(tokens[right])]


def tokenizer_json(tokens: Sequence[bytes], control: Sequence[str]) -> dict[str, Any]:
    """The content of tokenizer.json: `tokens`, then `control`; BOS is put before a text, as Llama 3 does."""
    added = [
        {"id": len(tokens) + i, "content": name, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for i, name in enumerate(control)
    ]
    bytelevel = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False}
    bos = {"SpecialToken": {"id": BOS, "type_id": 0}}
    first, second = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytelevel]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, first],
            "pair": [bos, first, {"SpecialToken": {"id": BOS, "type_id": 1}}, second],
            "special_tokens": {BOS: {"id": BOS, "ids": [len(tokens) + list(control).index(BOS)], "tokens": [BOS]}},
        },
        "decoder": bytelevel,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": True,
            "vocab": {_spell(token): rank for rank, token in enumerate(tokens)},
            "merges": list(_merges(tokens)),
        },
    }


def build(config: TokenizerConfig, texts: Iterable[str], folder: Path) -> Tokenizer:
    """Write the tokenizer folder of a config and open it. `texts` is read for kind ``bpe`` only.

    Raises:
        DataError: the source is missing, has another size than `vocab_size`, or is not laid out like Llama 3's.
    """
    if config.kind == "hub":
        spec = _hub_spec(config.name)
    elif config.kind == "llama3":
        spec = tokenizer_json(*_llama3())
    else:
        spec = tokenizer_json(*_trained(texts, config))
    return save(spec, config, folder)


def origin(config: TokenizerConfig) -> str:
    """Where the tokenizer will come from, in words, after its source has been reached.

    Raises:
        DataError: it cannot be.
    """
    if config.kind == "hub":
        return f"hub {config.name}: {len(_hub_spec(config.name)['model']['vocab']):,} text tokens"
    if config.kind == "llama3":
        return f"package llama-models: {len(_llama3()[0]):,} text tokens"
    return f"byte-level BPE of {config.vocab_size:,} entries, trained on the spot"


def _trained(texts: Iterable[str], config: TokenizerConfig) -> tuple[list[bytes], list[str]]:
    room = config.vocab_size - len(CONTROL)
    tokens = train_tokens(head(texts, config.train_bytes), room)
    spare = (f"<|reserved_special_token_{i}|>" for i in range(room - len(tokens)))
    return tokens, [*CONTROL, *spare]


def head(texts: Iterable[str], size: int) -> Iterator[str]:
    """Complete texts, until they have `size` bytes of UTF-8."""
    for text in texts:
        yield text
        size -= len(text.encode())
        if size <= 0:
            return


def _llama3() -> tuple[list[bytes], list[str]]:
    spec = find_spec("llama_models")
    roots = list(spec.submodule_search_locations or ()) if spec else []
    paths = [Path(root) / "llama3" / "tokenizer.model" for root in roots]
    if not any(path.is_file() for path in paths):
        raise DataError(
            "tokenizer.kind: 'llama3' needs the package llama-models (pip install --no-deps llama-models; Llama 3 "
            "Community License). Allowed besides: hub, bpe. Change it in the config file."
        )
    ranks = read_ranks(next(path for path in paths if path.is_file()))
    reserved = [f"<|reserved_special_token_{i}|>" for i in range(256)]
    named = [BOS, EOS, *reserved[:2], PAD, "<|step_id|>", *CONTROL[3:5], "<|eom_id|>", EOT, "<|python_tag|>"]
    return sorted(ranks, key=ranks.__getitem__), [*named, *reserved[2 : 2 + 256 - len(named)]]


def _hub_spec(name: str) -> dict[str, Any]:
    local = Path(name) / "tokenizer.json"
    if not local.is_file():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            local = Path(hf_hub_download(name, "tokenizer.json"))
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
            raise DataError(
                f"tokenizer.name: {name!r} cannot be read ({type(error).__name__}: {error}). Allowed: a folder with "
                f"tokenizer.json, or a hub repository you may read. Change it in the config file."
            ) from error
    try:
        spec: dict[str, Any] = json.loads(local.read_text())
        names = {token["content"] for token in spec["added_tokens"]}
        len(spec["model"]["vocab"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"tokenizer.name: {name!r} has a tokenizer.json that is none ({type(error).__name__}: {error}). Allowed: "
            f"one with added_tokens and model.vocab. Change it in the config file."
        ) from error
    if limits := [name for name in ("truncation", "padding") if spec.get(name) is not None]:
        log.warning("tokenizer.name: %r sets %s; switched off, since it would change documents.", name, limits)
        spec |= dict.fromkeys(limits)
    for token in spec["added_tokens"]:  # Llama 3.0 calls it reserved; 3.1 gave the same id its name
        if PAD not in names and token["content"] == "<|reserved_special_token_2|>":
            token["content"] = PAD
    return spec


def save(spec: dict[str, Any], config: TokenizerConfig, folder: Path) -> Tokenizer:
    """Write the files of a folder, `ids.json` last; the fast way is kept only if it gives identical ids."""
    ids = {token["content"]: token["id"] for token in spec["added_tokens"]}
    n_text = len(spec["model"]["vocab"])
    size = max([n_text - 1, *ids.values()]) + 1
    missing = [name for name in CONTROL if name not in ids]
    if missing or size != config.vocab_size:
        raise DataError(
            f"tokenizer: {config.kind} {config.name!r} has {size} entries and lacks {missing or 'nothing'}; needed: "
            f"tokenizer.vocab_size {config.vocab_size} entries and Llama 3's control tokens. Change it in the config."
        )
    text = json.dumps(spec, ensure_ascii=False)
    _write(folder / "tokenizer.json", text)
    _write(folder / "chat_template.jinja", CHAT_TEMPLATE)
    write_json(folder / "tokenizer_config.json", _hf_config())
    meta = {
        "vocab_size": size,
        "n_text": n_text,
        "control": {name: ids[name] for name in CONTROL},
        "sha256": hashlib.sha256(f"{text}\n{CHAT_TEMPLATE}".encode()).hexdigest(),
        "pattern": PATTERN,
        "fast": False,
    }
    meta["fast"] = _try_ranks(spec, folder, meta)
    _check_round_trip(Tokenizer(folder, meta), config)
    write_json(folder / "ids.json", meta)
    return Tokenizer.load(folder)


def _check_round_trip(tokenizer: Tokenizer, config: TokenizerConfig) -> None:
    """Refuse a tokenizer that cuts, pads, normalises or samples: a long text must come back from the same ids."""
    text = (TORTURE + UNNORMALISED) * 40
    ids = tokenizer.encode_text(text)
    if tokenizer.encode_text(text) != ids:
        raise DataError(
            f"tokenizer: {config.kind} {config.name!r} encodes the same text to different ids (dropout?). Allowed: a "
            f"deterministic one. Change it in the config file."
        )
    back = tokenizer.decode(ids)
    if back != text:
        place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
        raise DataError(
            f"tokenizer: {config.kind} {config.name!r} does not give a text back: {len(text)} characters became "
            f"{len(ids)} ids and then {len(back)} characters, which differ from character {place} on (a normalizer, a "
            f"decoder, or an unknown token?). Allowed: one that keeps text as it is. Change it in the config file."
        )


def _try_ranks(spec: dict[str, Any], folder: Path, meta: dict[str, Any]) -> bool:
    """Write ranks and compare both ways on a text of difficult cases and on the concatenated vocabulary."""
    vocab: dict[str, int] = spec["model"]["vocab"]
    steps = (spec["pre_tokenizer"] or {}).get("pretokenizers", [])
    patterns = [step["pattern"].get("Regex") for step in steps if step["type"] == "Split"]
    if patterns != [PATTERN] or sorted(vocab.values()) != list(range(len(vocab))):
        return False
    tokens = [_unspell(token) for token in sorted(vocab, key=vocab.__getitem__)]
    with atomic_path(folder / "ranks.tiktoken") as temporary:
        write_ranks(temporary, tokens)
    fast, slow = (Tokenizer(folder, {**meta, "fast": way}) for way in (True, False))
    words = b" ".join(tokens).decode("utf-8", "replace")
    return all(np.array_equal(fast.encode_array(t), slow.encode_array(t)) for t in (TORTURE, words, words[::-1]))


def files(tokenizer: Tokenizer) -> list[Path]:
    """The files of a folder."""
    return [tokenizer.folder / name for name in (*_FILES, *(["ranks.tiktoken"] if tokenizer.fast else []))]


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text)


def _hf_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1 << 30,
    }
