"""Evaluation against what people use for it: RULER items, decoding, shared prompts, the sandbox.

1. RULER items against lm-eval's generators, same tokenizer folder and length: cold (made) and warm (read and checked).
2. Greedy decoding of a ragged batch of 16 against transformers' `generate` with the same weights; tokens are compared.
3. Sixteen samples of one 512-token prompt against sixteen prompts with one sample each.
4. HumanEval's own solutions through the sandbox, programs per second of wall time with two workers.

Sides of 1 to 3 run interleaved in CPU time of one thread; a ratio is of medians. Prints a card, then one JSON line.
Run: ``OMP_NUM_THREADS=1 python benchmarks/evals.py [--items 100] [--repeats 3] [--only ruler decode shared sandbox]``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from timing import interleaved

from iha.artifacts.manifest import Manifest, file_entry
from iha.config.schema import DocstringSource, ModelConfig, SplitConfig, TokenizerConfig, Variant
from iha.data import corpus, tokenizer_build
from iha.data.tokenizer import Tokenizer
from iha.evals.generate import Draw, Generator, Request, Sampling, left_pad
from iha.evals.ruler.items import generate, item_path, read_items, write_items
from iha.evals.ruler.tasks import Materials
from iha.model.transformer import Transformer, build_model

MODEL = ModelConfig(hidden_dim=256, n_layers=6, n_heads=4, ffn_dim=704)
VOCAB, LENGTH = 4096, 4096
NEW, PROMPT, SAMPLES = 64, 512, 16
RULER = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "fwe")


class Letters:
    """Stands for a tokenizer where texts do not matter; no id ends an answer."""

    eos = eot = -1
    pad = 0

    def decode(self, ids):
        """The ids themselves."""
        return " ".join(map(str, ids))


def bpe(folder: Path) -> Tokenizer:
    """A tokenizer trained on docstrings."""
    sources = SplitConfig(sources=(DocstringSource(kind="docstrings", packages=("numpy", "scipy")),))
    texts = tokenizer_build.head(corpus.texts(sources), 1_000_000)
    return tokenizer_build.build(TokenizerConfig(kind="bpe", vocab_size=VOCAB), texts, folder)


def stock_ruler(folder: Path, items: int) -> dict[str, Callable[[], object]]:
    """lm-eval's generators, told to make `items` items."""
    from lm_eval.tasks.ruler import fwe_utils, vt_utils
    from lm_eval.tasks.ruler.niah_utils import TEMPLATE
    from lm_eval.tasks.ruler.prepare_niah import generate_samples, get_haystack
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)

    def niah(haystack: str, key: str, value: str) -> Callable[[], object]:
        return lambda: list(
            generate_samples(
                get_haystack(type_haystack=haystack), max_seq_length=LENGTH, template=TEMPLATE, num_samples=items,
                type_haystack=haystack, type_needle_k=key, type_needle_v=value, TOKENIZER=tokenizer,
            )
        )  # fmt: skip

    def vt() -> object:
        example = vt_utils.sys_vartrack_w_noise_random(
            tokenizer=tokenizer, num_samples=1, max_seq_length=500, incremental=5
        )[0]
        return vt_utils.sys_vartrack_w_noise_random(
            tokenizer=tokenizer, num_samples=items, max_seq_length=LENGTH, icl_example=example
        )

    return {
        "niah_single_1": niah("repeat", "words", "numbers"),
        "niah_multikey_2": niah("needle", "words", "numbers"),
        "niah_multikey_3": niah("needle", "uuids", "uuids"),
        "vt": vt,
        "fwe": lambda: fwe_utils.sys_kwext(tokenizer, LENGTH, items),
    }


def ruler(items: int, repeats: int) -> dict[str, float]:
    """How many times faster than lm-eval items are made, and read once they are made."""
    rows, total = {}, {"lm_eval": 0.0, "cold": 0.0, "warm": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        state = Path(scratch)
        tokenizer = bpe(state / "tokenizer")
        stock = stock_ruler(tokenizer.folder, items)
        for task in RULER:
            path = item_path(state, LENGTH, task)
            write_items(path, generate(task, LENGTH, items, tokenizer, Materials()))
            made = Manifest(stage="ruler", slice={}, code="", files={task: file_entry(path, state)})
            sides = {
                "lm_eval": stock[task],
                "cold": lambda task=task: list(generate(task, LENGTH, items, tokenizer, Materials())),
                "warm": lambda task=task, made=made: read_items(made, state, task, tokenizer.sha256),
            }
            with contextlib.redirect_stderr(io.StringIO()):
                times = interleaved(sides, repeats)
            total = {side: total[side] + times[side] for side in total}
            rows[f"ruler_{task}_cold"] = times["lm_eval"] / times["cold"]
            print(f"  {task:16} " + "  ".join(f"{side} {times[side] / items:7.3f} ms/item" for side in sides))
    return rows | {f"ruler_{side}": total["lm_eval"] / total[side] for side in ("cold", "warm")}


def network() -> Transformer:
    """The global variant, random weights; embeddings large enough that greedy texts differ."""
    attention = Variant.model_validate({"name": "g", "attention": {"kind": "global"}}).attention
    model = build_model(MODEL, attention, VOCAB, LENGTH, seed=1)
    with torch.no_grad():
        model.embed.weight.mul_(20)
    return model.eval()


def llama(ours: Transformer) -> torch.nn.Module:
    """transformers' Llama with the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=MODEL.hidden_dim, intermediate_size=MODEL.ffn_dim, eos_token_id=None,
        num_hidden_layers=MODEL.n_layers, num_attention_heads=MODEL.n_heads, tie_word_embeddings=True, pad_token_id=0,
        rms_norm_eps=MODEL.norm_eps, attn_implementation="sdpa", max_position_embeddings=LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": MODEL.rope_theta},
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    weights = {"model.embed_tokens.weight": ours.embed.weight, "model.norm.weight": ours.norm.weight}
    for i, block in enumerate(ours.blocks):
        to, attention, ffn = f"model.layers.{i}", block.attention, block.ffn
        for name, part in zip("qkv", attention.qkv.weight.chunk(3), strict=True):
            weights[f"{to}.self_attn.{name}_proj.weight"] = part
        weights[f"{to}.self_attn.o_proj.weight"] = attention.out.weight
        for name, part in zip(("gate", "up"), ffn.gate_up.weight.chunk(2), strict=True):
            weights[f"{to}.mlp.{name}_proj.weight"] = part
        weights[f"{to}.mlp.down_proj.weight"] = ffn.down.weight
        weights[f"{to}.input_layernorm.weight"] = block.attention_norm.weight
        weights[f"{to}.post_attention_layernorm.weight"] = block.ffn_norm.weight
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
    model.tie_weights()
    return model


def prompts(lengths: list[int]) -> list[tuple[int, ...]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(3)
    return [tuple(torch.randint(1, VOCAB, (n,), generator=generator).tolist()) for n in lengths]


def answers(model: Transformer, requests: list[Request]) -> dict[tuple[int, int], str]:
    """Texts of all requests by their index and sample."""
    results = Generator(model, Letters(), SAMPLES).run(requests)
    return {(at, draw.sample): a.text for at, result in enumerate(results) for draw, a in result.answers.items()}


def decode(repeats: int) -> dict[str, float]:
    """A ragged batch of 16, greedy."""
    ours = network()
    theirs = llama(ours)
    asked = prompts([64 + 12 * i for i in range(16)])
    ids, pad = left_pad(asked, 0, torch.device("cpu"))
    mask = (torch.arange(ids.shape[1]) >= pad[:, None]).long()
    jobs = [Request(prompt, (Draw(Sampling(max_new_tokens=NEW)),)) for prompt in asked]

    def generated() -> torch.Tensor:
        with torch.no_grad():
            return theirs.generate(ids, attention_mask=mask, max_new_tokens=NEW, do_sample=False)[:, ids.shape[1] :]

    mine = answers(ours, jobs)
    same = sum(mine[i, 0] == " ".join(map(str, row.tolist())) for i, row in enumerate(generated()))
    times = interleaved({"generate": generated, "ours": lambda: answers(ours, jobs)}, repeats)
    print(f"  ours {16 * NEW / times['ours'] * 1e3:.0f} tokens/s, {same} of 16 texts token-identical")
    return {"decode_vs_generate": times["generate"] / times["ours"], "decode_identical": same / 16}


def shared(repeats: int) -> dict[str, float]:
    """Sixteen samples of one prompt against sixteen prompts."""
    model, new = network(), 32
    sampling = Sampling(max_new_tokens=new, temperature=0.6)
    asked = prompts([PROMPT] * SAMPLES)
    one = [Request(asked[0], tuple(Draw(sampling, i) for i in range(SAMPLES)))]
    many = [Request(prompt, (Draw(sampling),)) for prompt in asked]
    times = interleaved({"many": lambda: answers(model, many), "one": lambda: answers(model, one)}, repeats)
    return {"shared_prompt": times["many"] / times["one"]}


def programs(repeats: int) -> dict[str, float]:
    """HumanEval's solutions, wall time: what a user waits for."""
    from iha.evals import sandbox
    from iha.evals.mirror import write_set
    from iha.evals.programs import humaneval_tests

    with tempfile.TemporaryDirectory() as scratch:
        write_set(Path(scratch), "humaneval", "package", items_dir=None, limit=None)
        (path,) = Path(scratch).rglob("test.jsonl")
        docs = [json.loads(line) for line in path.read_text().splitlines()]
    jobs = [(d["prompt"] + d["canonical_solution"], humaneval_tests(d["test"], d["entry_point"])) for d in docs]
    rates = []
    for _ in range(repeats):
        start = time.perf_counter()
        passed = sum(v.passed for v in sandbox.check(jobs, workers=2))
        rates.append(len(jobs) / (time.perf_counter() - start))
        print(f"  {passed} of {len(jobs)} pass, {rates[-1]:.1f} programs/s")
    return {"sandbox_per_s": max(rates), "sandbox_passed": passed / len(jobs)}


def main() -> None:
    """Print the card and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parts = {
        "ruler": lambda a: ruler(a.items, a.repeats),
        "decode": lambda a: decode(a.repeats),
        "shared": lambda a: shared(a.repeats),
        "sandbox": lambda a: programs(1),
    }
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    args = parser.parse_args()
    os.environ["TQDM_DISABLE"] = "1"
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for name in args.only:
        print(name)
        found |= parts[name](args)
    for name, value in found.items():
        print(f"  {name:24} {value:8.2f}")
    print(json.dumps({"benchmark": "evals", **{name: round(value, 3) for name, value in found.items()}}))


if __name__ == "__main__":
    main()
