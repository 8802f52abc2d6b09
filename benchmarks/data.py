"""Text to tokens, and tokens to batches, against what people use for it.

1. Our tokenise stage (worker processes, shards, hashes, manifest facts) against `datasets.map(batched=True)` with the
   same tokenizer folder through transformers, both with two processes, taking turns in one run.
2. Batches at the shape of OLMo-core's loader benchmark (sequence 4,096, global batch 64, 4 shards of 16M uint32 ids,
   no loader processes); OLMo-core's own figure there is 5.2 M tokens/s (recorded, not rerun).

Run: ``python benchmarks/data.py``. Prints a card, then one line of JSON. About 1.5 minutes on two cores.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np

from iha.config.schema import DocstringSource, FileSource, SplitConfig, TokenizerConfig
from iha.data import corpus, tokenise, tokenizer_build
from iha.data.loader import Batches
from iha.data.store import TokenStore
from iha.planning.slices import TokeniseSlice

PROCESSES, TURNS, TEXT_BYTES = 2, 3, 8_000_000
OLMO_CORE = 5.2e6
SEQ_LEN, BATCH, SHARDS, SHARD_TOKENS, STEPS = 4096, 64, 4, 16_000_000, 150


def texts() -> list[str]:
    """About 8 MB of docstrings."""
    source = DocstringSource(kind="docstrings", packages=("numpy", "scipy", "sympy", "networkx", "sklearn"))
    return list(tokenizer_build.head(corpus.texts(SplitConfig(sources=(source,))), TEXT_BYTES))


def ours(tokenizer, path: Path, folder: Path) -> int:
    """Tokens written by our stage."""
    data = SplitConfig(sources=(FileSource(kind="files", paths=(str(path),)),))
    part = TokeniseSlice(split="pretrain", data=data, shard_tokens=10**9, seq_len=0)
    return tokenise.build(part, tokenizer, folder, PROCESSES).metadata["n_tokens"]


def peers(tokenizer, path: Path, folder: Path) -> int:
    """Tokens written by datasets.map, from the same file to its own cache."""
    import datasets
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tokenizer.folder)
    rows = datasets.load_dataset("json", data_files=str(path), split="train", cache_dir=str(folder / "read"))

    def encode(batch):
        ids = theirs(batch["text"], return_attention_mask=False)["input_ids"]
        return {"input_ids": [[*i, theirs.eos_token_id] for i in ids], "n": [len(i) + 1 for i in ids]}

    done = rows.map(
        encode, batched=True, batch_size=250, num_proc=PROCESSES, remove_columns=["text"], load_from_cache_file=False
    )
    return sum(done["n"])


def tokenise_ratio() -> dict[str, float]:
    """Throughputs in MB/s and the median ratio of turns taken side by side."""
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as scratch:
        root, found = Path(scratch), texts()
        size = sum(len(text.encode()) for text in found)
        config = TokenizerConfig(kind="bpe", vocab_size=4096)
        tokenizer = tokenizer_build.build(config, islice(found, 400), root / "tokenizer")
        AutoTokenizer.from_pretrained(tokenizer.folder)  # their import is not timed
        path = root / "text.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
        mine, others = [], []
        for turn in range(TURNS):
            for seconds, run, name in ((mine, ours, "ours"), (others, peers, "peers")):
                start = time.perf_counter()
                tokens = run(tokenizer, path, root / f"{name}{turn}")
                seconds.append(time.perf_counter() - start)
                print(f"  {name:6} {size / 1e6 / seconds[-1]:6.2f} MB/s  {tokens:,} tokens")
    ratios = [theirs / own for own, theirs in zip(mine, others, strict=True)]
    return {
        "tokenise_mb_per_s": size / 1e6 / min(mine),
        "datasets_map_mb_per_s": size / 1e6 / min(others),
        "tokenise_ratio": statistics.median(ratios),
    }


def loader_rate() -> dict[str, float]:
    """Batches per second in tokens, one process, no loader processes."""
    with tempfile.TemporaryDirectory() as scratch:
        paths = tuple(Path(scratch) / f"shard_{i:05d}.ds" for i in range(SHARDS))
        rng = np.random.default_rng(0)
        for path in paths:
            rng.integers(0, 128_000, SHARD_TOKENS, dtype=np.uint32).tofile(path)
        facts = {"dtype": "uint32", "seq_len": 0, "eos": 128_001}
        store = TokenStore(facts, paths, np.arange(SHARDS + 1) * SHARD_TOKENS)
        batches = Batches(store, SEQ_LEN, BATCH, seed=1)
        rates = []
        for turn in range(TURNS):
            start = time.perf_counter()
            for step in range(turn * STEPS, (turn + 1) * STEPS):
                batches.batch(step)
            rates.append(STEPS * BATCH * SEQ_LEN / (time.perf_counter() - start))
            print(f"  loader {rates[-1] / 1e6:6.1f} M tokens/s")
    return {"loader_tokens_per_s": statistics.median(rates), "loader_ratio": statistics.median(rates) / OLMO_CORE}


def main() -> None:
    """Print the card and the JSON line."""
    print(f"Tokenise, {PROCESSES} processes, against datasets.map")
    found = tokenise_ratio()
    print("Loader, against OLMo-core's recorded 5.2 M tokens/s")
    found |= loader_rate()
    print(json.dumps({"benchmark": "data", **{name: round(value, 3) for name, value in found.items()}}))


if __name__ == "__main__":
    main()
