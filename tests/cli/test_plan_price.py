"""Time, memory and disk of a job, computed by hand from the formulas that docs/explanation/plan.md states."""

import pytest

import iha.studies.price  # noqa: F401 (registers the prices of the studies)
from iha.config.load import parse_config
from iha.planning.price import BATCH_TOKENS, ITEMS, Machine, itemsize, jobs

D, LAYERS, HEADS, FFN, VOCAB, LENGTH = 64, 2, 4, 128, 1000, 32
#: Of one sequence, in FLOPs: 2 per multiply-add; four projections, three matrices of the MLP, one head.
PROJECTIONS = 2 * LENGTH * 4 * D * D * LAYERS
MLP = 2 * LENGTH * 3 * D * FFN * LAYERS
HEAD = 2 * LENGTH * D * VOCAB
#: Scores and values, 2 D each for every live pair.
ATTENTION = 4 * D * (LENGTH * (LENGTH + 1) // 2) * LAYERS
#: Weights: attention, MLP, two norms a layer and the last, one matrix for embedding and head.
PARAMS = LAYERS * (4 * D * D + 3 * D * FFN + 2 * D) + D + VOCAB * D


def tiny(attention=None, **changes):
    """One small model on a machine of round numbers."""
    raw = {
        "variants": [{"name": "global", "attention": attention or {"kind": "global"}}],
        "model": {"hidden_dim": D, "n_layers": LAYERS, "n_heads": HEADS, "ffn_dim": FFN},
        "tokenizer": {"kind": "bpe", "vocab_size": VOCAB, "train_bytes": 5000},
        "pretrain": {"seq_len": LENGTH, "steps": 100, "global_batch": 8, "micro_batch": 2, "warmup_steps": 1},
        "extend": {"seq_len": 2 * LENGTH, "steps": 10, "global_batch": 4, "warmup_steps": 1},
        "sft": {"seq_len": LENGTH, "steps": 10, "global_batch": 6, "warmup_steps": 1},
        "engine": {"loss_chunk": 16, "precision": "fp32", "activation_checkpointing": False},
        "evals": {"suites": [{"name": "w", "model": "base", "tasks": ["gsm8k"]}]},
        "plan": {
            "total_gpus": 8, "gpus_per_node": 2, "peak_tflops": 1.0, "bandwidth_gb_s": 1.0, "matmul_efficiency": 0.5,
            "attention_efficiency": {"global": 0.25, "other": 0.1}, "network_efficiency": 0.8, "start_seconds": 7,
            "decode_efficiency": 0.5, "small_seconds": 3, "core_tokens_per_second": 1000,
        },
    }  # fmt: skip
    for dotted, value in changes.items():
        *path, last = dotted.split("__")
        section = raw
        for key in path:
            section = section.setdefault(key, {})
        section[last] = value
    config = parse_config(raw)
    return Machine(config, config.variants[0].attention)


def seconds(blocks, network, gpus, share=0.25):
    products = blocks * (PROJECTIONS + MLP) + 3 * HEAD
    return 8 * (products / 0.5 + blocks * ATTENTION / share) / (1e12 * gpus * network)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, seconds(3, 0.8, 8)),
        ({"engine__activation_checkpointing": True}, seconds(4, 0.8, 8)),
        ({"plan__gpus_per_node": 8}, seconds(3, 1.0, 8)),
        ({"plan__gpus_per_node": 7}, seconds(3, 0.8, 8)),
        ({"plan__total_gpus": 7}, seconds(3, 0.8, 4)),
        ({"plan__total_gpus": 0, "runtime__threads": 3}, seconds(3, 1.0, 3)),
        ({"plan__attention_efficiency": {"other": 0.1}}, seconds(3, 0.8, 8, share=0.1)),
        ({"plan__attention_efficiency": {}}, seconds(3, 0.8, 8, share=0.5)),
    ],
)
def test_a_step_takes_its_products_at_the_stated_shares_of_the_peak(changes, expected):
    assert tiny(**changes).step_seconds("pretrain") == pytest.approx(expected, rel=1e-12)


def test_a_training_is_its_start_and_its_steps_and_writes_a_journal():
    machine = tiny()
    job = next(j for j in jobs(machine.config) if j.rule == "pretrain")
    assert job.seconds == pytest.approx(7 + 100 * seconds(3, 0.8, 8))
    assert job.flops == 100 * 8 * 3 * (PROJECTIONS + MLP + HEAD + ATTENTION)
    assert (job.tokens, job.gpus, job.log_bytes) == (100 * 8 * LENGTH, 8, 4000 + 300 * 100)
    assert job.flops_12lds == pytest.approx(
        100 * 8 * LENGTH * (6 * (PARAMS) + 12 * LAYERS * D * LENGTH), rel=0.01
    )  # 6 N + 12 L D S a token, up to what counts as N
    assert job.after == ("tokenizer", "tokenise-pretrain") and job.state == "runs/global/seed1/pretrain"


@pytest.mark.parametrize(
    ("total", "batch", "expected"), [(8, 8, 8), (7, 8, 4), (8, 6, 6), (4, 6, 3), (8, 7, 7), (6, 7, 1), (0, 8, 0), (100, 8, 8)]
)  # fmt: skip
def test_a_job_gets_the_most_gpus_that_its_batch_divides_over(total, batch, expected):
    assert tiny(plan__total_gpus=total, pretrain__global_batch=batch, pretrain__micro_batch=1).gpus("pretrain") == expected  # fmt: skip


def test_stated_gpus_count_and_zero_of_them_means_cores():
    assert tiny(plan__gpus={"pretrain": 4}).gpus("pretrain") == 4
    assert tiny(plan__gpus={"pretrain": 0}).gpus("pretrain") == 0
    assert [tiny(plan__total_gpus=n).evaluating for n in (0, 1, 8)] == [0, 1, 1]
    assert tiny(plan__gpus={"evaluate": 4}).evaluating == 4


def test_disk_holds_the_kept_checkpoints_the_healthy_one_one_in_writing_and_the_weights():
    """12 bytes per parameter and checkpoint: weight and two moments; 4 for the final weights."""
    for kept in (1, 3):
        machine = tiny(pretrain__keep_checkpoints=kept)
        assert machine.model.params()["total"] == PARAMS
        assert machine.checkpoint_bytes("pretrain") == PARAMS * (12 * (kept + 2) + 4)


def test_memory_of_a_rank_is_state_gathered_weights_activations_and_loss():
    block = 4 * D * D + 3 * D * FFN
    rows = 1 * LENGTH  # a batch of 8 on 8 GPUs leaves one sequence to a rank, whatever its micro batch
    inside = rows * (8 * D + 4 * (12 * D + 4 * FFN))
    loss = 4 * VOCAB * D + 6 * 16 * VOCAB
    sharded = 16 * PARAMS / 2 + 4 * (3 * block + 2 * VOCAB * D)
    found = tiny().training_memory("pretrain")
    assert found == pytest.approx(sharded + inside * LAYERS + loss + 2e9, rel=1e-3)
    kept = tiny(engine__activation_checkpointing=True).training_memory("pretrain")
    assert kept == pytest.approx(sharded + 4 * rows * D * LAYERS + inside + loss + 2e9, rel=1e-3)
    alone = tiny(plan__total_gpus=0).training_memory("pretrain")
    assert alone == pytest.approx(16 * PARAMS + 2 * inside * LAYERS + loss + 4e8, rel=1e-3)


def test_bf16_halves_what_is_kept_of_activations_and_not_the_state():
    wide, narrow = tiny(), tiny(engine__precision="bf16")
    saved = wide.training_memory("pretrain") - narrow.training_memory("pretrain")
    assert saved == pytest.approx(LAYERS * LENGTH * 2 * (12 * D + 4 * FFN))


def test_an_answer_is_a_prompt_read_once_and_tokens_written_at_the_bandwidth():
    machine = tiny(evals__batch_size=4)
    read = ((PROJECTIONS + MLP + HEAD) / 0.5 + ATTENTION / 0.25) / 1e12
    assert machine.answer_seconds(5, 1, LENGTH, 0) == pytest.approx(5 * read)
    cache = 2 * LAYERS * D * 2 * (LENGTH + 4)  # keys and values in bf16, in the middle of an answer of 8
    write = 8 * (2 * PARAMS + 4 * cache) / (1e9 * 0.5)
    assert machine.answer_seconds(5, 3, LENGTH, 8) == pytest.approx(5 * read + 4 * write)  # 15 answers, 4 at a time
    assert machine.answer_memory(LENGTH) == 2 * PARAMS + 4 * 2 * LAYERS * D * 2 * LENGTH + 2e9


@pytest.mark.parametrize(("length", "rows"), [(1, 16), (BATCH_TOKENS // 16, 16), (BATCH_TOKENS // 16 + 1, 15), (BATCH_TOKENS, 1), (10**9, 1)])  # fmt: skip
def test_a_batch_of_answers_holds_as_many_as_fit_and_at_least_one(length, rows):
    assert tiny()._rows(length) == rows


@pytest.mark.parametrize(("vocab", "width"), [(262, 2), (65_536, 2), (65_537, 4), (128_256, 4)])
def test_a_token_takes_two_bytes_as_long_as_its_number_fits(vocab, width):
    assert itemsize(vocab) == width


def test_stores_are_as_large_as_what_the_config_stops_at_or_the_training_needs():
    sources = {"sources": [{"kind": "book"}]}
    config = tiny(data__pretrain={**sources, "max_tokens": 900}, data__extend=sources, data__sft=sources).config
    found = {job.name: job for job in jobs(config)}
    assert [found[f"tokenise-{s}"].tokens for s in ("pretrain", "extend", "sft")] == [900, 10 * 4 * 64, 10 * 6 * 32]
    assert found["tokenise-pretrain"].data_bytes == 2 * 900
    assert found["tokenise-sft"].data_bytes == (2 + 3) * 10 * 6 * 32  # a mask and a place beside each token
    assert found["tokenise-pretrain"].seconds == found["contamination-pretrain"].seconds == 3 + 900 / 1000 / 2
    assert found["tokenizer"].seconds == 3 + 5000 / 1000 / 2


def test_suites_are_priced_by_their_items_their_limit_and_the_answers_of_their_model():
    def suites(**more):
        named = [{"name": "w", "model": model, "tasks": ["gsm8k", "mbpp"]} for model in ("base", "sft")]
        config = tiny(evals__suites=named, evals__samples=16, evals__base_samples=5, **more).config
        return {job.name.rpartition("-")[2]: job for job in jobs(config) if job.rule == "evaluate"}

    whole, limited = suites(), suites(evals__limit=10)
    items, answers = ITEMS["gsm8k"] + ITEMS["mbpp"], {"base": (256, 5), "sft": (4096, 16)}
    for model, (length, samples) in answers.items():
        assert whole[model].data_bytes == 4 * length * samples * items
        assert limited[model].data_bytes == 4 * length * samples * 20
    assert suites(evals__max_new_tokens=8)["sft"].data_bytes == 4 * 8 * 16 * items
    assert whole["base"].after == ("pretrain-global-seed1", "tokenizer", "items")
    assert whole["sft"].after[0] == "sft-global-seed1"
