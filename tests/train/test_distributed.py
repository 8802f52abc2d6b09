"""One, two and four ranks: the same stream, the same loss, interchangeable checkpoints."""

import os
import signal

import pytest
import torch
from trainlab import Bigram, Fixed, Lab, make_loop, packed_store, plain_store, recipe, train_slice

from iha.config.schema import ModelConfig
from iha.stages.common import RESUMABLE
from iha.train.distributed import World

MODEL = ModelConfig(hidden_dim=32, n_layers=2, n_heads=4, ffn_dim=48)
PART = train_slice("iha", model=MODEL, recipe=recipe(steps=8, checkpoint_every=4, micro_batch=1, lr=1e-3))


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Once, for the forked ranks to inherit; not by every worker that collects this file (5 s)."""
    import torch._dynamo
    import torch.distributed.fsdp  # noqa: F401


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    lab = Lab(tmp_path_factory.mktemp("single"))
    assert lab.run(PART)[0] == 0
    return lab


def assert_close(lab, single):
    ours, theirs = lab.made(PART).metadata, single.made(PART).metadata
    assert {n: ours[n] for n in ("steps", "tokens", "data_digest")} == {
        n: theirs[n] for n in ("steps", "tokens", "data_digest")
    }
    losses = single.losses(PART)
    assert lab.losses(PART) == pytest.approx(losses, rel=1e-5)
    for name, weight in single.weights(PART).items():
        torch.testing.assert_close(lab.weights(PART)[name], weight, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("size", "node"), [(2, 2), (4, 4), (4, 2)])
def test_the_number_of_ranks_does_not_change_the_run(tmp_path, single, size, node):
    """(4, 2): two nodes of two ranks, sharded within a node and replicated across."""
    lab = Lab(tmp_path)
    for code, text in lab.ranks(PART, size, LOCAL_WORLD_SIZE=str(node)):
        assert code == 0, text
    assert_close(lab, single)


def test_a_checkpoint_of_two_ranks_is_resumed_by_one_and_by_four(tmp_path, single):
    lab = Lab(tmp_path)
    codes = [code for code, _ in lab.ranks(PART, 2, IHA_FAULT="step@4:kill")]
    assert codes == [-signal.SIGKILL] * 2
    assert len(list((lab.folder(PART) / "checkpoints" / "latest").glob("rank_*"))) == 2
    first = Lab(tmp_path)
    code, text = first.run(PART, IHA_FAULT="step@2:kill")
    assert (code, "resumed after step 4" in text) == (-signal.SIGKILL, True), text
    for code, text in lab.ranks(PART, 4):
        assert code == 0, text
    assert_close(lab, single)


def test_a_signal_to_one_rank_stops_all_at_one_step(tmp_path, single):
    lab, gate = Lab(tmp_path), tmp_path / "gate"
    journal = lab.folder(PART) / "metrics.jsonl"
    ranks = lab.start_ranks(PART, 2, IHA_FAULT=f"step@3:wait={gate}")
    ranks[0].wait_for(lambda: journal.exists() and '"step": 3' in journal.read_text())
    os.kill(ranks[1].pid, signal.SIGUSR2)
    ranks[1].wait_for(lambda: "SIGUSR2 received" in ranks[1].text)
    gate.touch()
    assert [rank.wait() for rank in ranks] == [RESUMABLE] * 2
    assert "received" not in ranks[0].text
    assert "saved after step 3 of 8" in ranks[0].text
    for code, text in lab.ranks(PART, 2):
        assert code == 0, text
    assert_close(lab, single)


class Alone(World):
    """A rank of a world in which no one else is running."""

    def sum(self, values):
        return values


def test_each_labelled_token_weighs_the_same_on_every_rank(tmp_path):
    """5 labelled tokens on one rank, 1 on the other: the averaged gradient is that of all 6 in one batch."""
    tokens = torch.tensor([[0, 1, 2, 3, 4], [5, 6, 7, 0, 1]])
    targets = torch.tensor([[1, 2, 3, 4, 5], [6, -100, -100, -100, -100]])
    plan = recipe(steps=1, global_batch=2, micro_batch=1, warmup_steps=0)

    def gradients(rank, size):
        loop = make_loop(tmp_path, plan, Fixed(lambda step: (tokens, targets)), Bigram())
        loop.world = Alone(rank, size, torch.device("cpu"))
        loop.compute_gradients(loop.batches.batch(0, rank, size), 6)
        return loop.optimizer.gradients()

    both = [torch.stack(pair).mean(0) for pair in zip(gradients(0, 2), gradients(1, 2), strict=True)]
    for ours, expected in zip(both, gradients(0, 1), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-7)


def test_a_refusal_on_the_lead_rank_is_every_ranks(tmp_path):
    lab = Lab(tmp_path)
    assert lab.run(PART, IHA_FAULT="step@5:kill")[0] == -signal.SIGKILL
    lab.give("store", plain_store(lab.state, seed=9))
    for code, text in lab.ranks(PART, 2):
        assert code == 2
        assert "inputs.store" in text


def test_data_changed_in_place_are_seen_by_whichever_rank_hashes_them(tmp_path):
    lab = Lab(tmp_path)
    lab.give("store", packed_store(lab.state))
    documents = lab.state / "packed.doc"  # the second in size, so the second rank's
    documents.write_bytes(bytes([1]) + documents.read_bytes()[1:])
    for code, text in lab.ranks(PART, 2):
        assert code == 2
        assert "packed.doc: differs from its manifest" in text


def test_a_batch_that_does_not_divide_is_refused(tmp_path):
    part = train_slice(recipe=recipe(global_batch=3, micro_batch=1))
    for code, text in Lab(tmp_path).ranks(part, 2):
        assert code == 2
        assert "pretrain.global_batch: 3 does not divide over 2 ranks" in text
