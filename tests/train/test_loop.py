"""One step of the loop and what surrounds it: clipping, micro-batches, digests, signals, devices."""

import json
import os
import signal

import pytest
import torch
from attention_lab import model as lm
from trainlab import ENGINE, Asked, Bigram, Fixed, Kept, make_loop, random_batches, recipe, run_loop

from iha.artifacts.run import STOP_SIGNALS
from iha.config.schema import EngineConfig
from iha.data.loader import Batch
from iha.errors import ConfigError
from iha.train import distributed
from iha.train.checkpoint import steps_in
from iha.train.distributed import World, make_deterministic
from iha.train.loop import Counters, StopFlag, prepare, restore_metadata, state_metadata, state_tensors
from iha.train.loss import ModelWithLoss
from iha.train.optimizer import AdamW

ALONE = World(0, 1, torch.device("cpu"))


def spy(loop):
    """The gradients that the optimiser sees, step by step."""
    seen, step = [], loop.optimizer.step

    def watched(rate):
        seen.append([g.clone() for g in loop.optimizer.gradients()])
        step(rate)

    loop.optimizer.step = watched
    return seen


@pytest.mark.parametrize(("limit", "clipped"), [(1e-3, True), (1e3, False)])
def test_gradients_are_clipped_as_torch_does_and_the_norm_is_told_from_before(tmp_path, limit, clipped):
    loop = make_loop(tmp_path, recipe(steps=1, warmup_steps=0, clip_norm=limit))
    seen, other = spy(loop), Bigram()
    rows = run_loop(loop).rows
    tokens, targets = random_batches().of(0)
    torch.nn.functional.cross_entropy(
        (other.hidden(tokens) @ other.head_weight.T).flatten(0, 1), targets.flatten()
    ).backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), limit)
    assert rows[1]["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    for ours, theirs in zip(seen[0], other.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.grad, rtol=1e-4, atol=1e-8)
    total = torch.nn.utils.get_total_norm(seen[0]).item()
    assert total == pytest.approx(limit if clipped else norm.item(), rel=1e-3)


class Packed(Fixed):
    """Batches whose rows are cut into documents at places of their own."""

    def batch(self, step, rank=0, world=1):
        tokens, targets = self.of(step)
        docs = torch.arange(12).expand(4, -1) > torch.tensor([2, 5, 8, 11])[:, None]
        return Batch(tokens, targets, docs.int())


def test_micro_batches_take_their_own_documents_with_them(tmp_path):
    def gradients(micro):
        plan = recipe(steps=1, global_batch=4, micro_batch=micro, warmup_steps=0)
        batches = Packed(random_batches(50, 4, 12).of)
        loop = make_loop(tmp_path, plan, batches, lm("iha", layers=2, dtype=torch.float32))
        loss, norm = loop.compute_gradients(batches.batch(0), 48)
        return loss, norm, loop.optimizer.gradients()

    whole, parts = gradients(4), gradients(1)
    assert parts[:2] == pytest.approx(whole[:2], rel=1e-5)
    for one, all_ in zip(parts[2], whole[2], strict=True):
        torch.testing.assert_close(one, all_, rtol=1e-3, atol=1e-6)


def test_milestones_of_runs_of_unequal_length_stand_at_equal_steps_with_equal_digests(tmp_path):
    """The ledger gives another number of steps to each variant of one recipe; the report compares their streams."""
    plan, found = recipe(steps=43, checkpoint_every=99), []
    for steps in (43, 9):
        loop = make_loop(tmp_path / str(steps), plan)
        loop.steps = steps
        run_loop(loop)
        found.append(loop.counters.milestones)
    assert list(found[0]) == [str(s) for s in range(2, 44, 2)]
    assert found[1] == {step: found[0][step] for step in ("2", "4", "6", "8")}
    assert len(set(found[0].values())) == 21


def test_a_short_run_has_a_milestone_at_every_step(tmp_path):
    loop = make_loop(tmp_path, recipe(steps=3))
    run_loop(loop)
    assert list(loop.counters.milestones) == ["1", "2", "3"]
    assert loop.counters.milestones["3"] == loop.counters.digest
    assert loop.counters.tokens == 3 * 4 * 6


def test_a_stop_before_the_first_step_loses_nothing(tmp_path):
    plan = recipe(steps=4, checkpoint_every=2)
    straight = run_loop(make_loop(tmp_path / "straight", plan)).rows
    asked, loop = Asked(), make_loop(tmp_path / "cut", plan)
    asked.reason = "SIGTERM"
    assert not loop.run([Kept()], asked)
    assert (steps_in(tmp_path / "cut"), loop.counters.step) == ([0], 0)
    assert run_loop(make_loop(tmp_path / "cut", plan)).rows == straight


def test_a_run_at_its_end_trains_nothing_and_writes_nothing(tmp_path):
    plan = recipe(steps=4, checkpoint_every=3)
    run_loop(make_loop(tmp_path, plan))
    assert steps_in(tmp_path) == [3, 4], "the end is saved although it is no multiple"
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")}
    assert run_loop(make_loop(tmp_path, plan)).rows == {}
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*")} == before


@pytest.fixture
def handlers():
    """The process's own signal handlers, put back afterwards."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_the_reason_and_an_impatient_second_changes_nothing(handlers, caplog):
    flag = StopFlag()
    assert flag.reason is None
    for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        os.kill(os.getpid(), number)
    assert flag.reason == "SIGUSR1"
    assert [r.getMessage() for r in caplog.records] == [
        "SIGUSR1 received: saving at the next step boundary, then stopping."
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_gpu_that_is_not_there_is_refused_and_auto_takes_the_cpu(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match=r"runtime\.device: 'cuda', but torch sees no GPU; allowed here: auto, cpu"):
        distributed.start("cuda")
    for asked in ("auto", "cpu"):
        world = distributed.start(asked)
        assert (world.rank, world.size, world.device.type, world.is_main) == (0, 1, "cpu", True)
    assert world.device_name and world.device_name == world.device_name.strip()


def test_a_seed_decides_the_random_numbers_and_the_config_the_threads():
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    try:
        drawn = []
        for seed in (5, 5, 6):
            make_deterministic(seed, threads=2)
            drawn.append(torch.rand(4))
        assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
        assert torch.get_num_threads() == 2 and torch.get_deterministic_debug_mode() == 1
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


def test_preparing_a_model_leaves_names_and_values_alone():
    engine = EngineConfig(precision="fp32", compile=False, activation_checkpointing=True, loss_chunk=64)
    plain, other = lm("iha", dtype=torch.float32), lm("iha", dtype=torch.float32)
    objective = prepare(other, engine, ALONE)
    assert isinstance(objective, ModelWithLoss) and objective.model is other
    for (name, value), (same, before) in zip(other.state_dict().items(), plain.state_dict().items(), strict=True):
        assert name == same and torch.equal(value, before)


def test_bf16_takes_fp32_weights_and_gives_an_fp32_loss():
    net, ids = lm("global", dtype=torch.float32), torch.randint(50, (2, 13), generator=torch.Generator().manual_seed(0))
    full, low = (
        ModelWithLoss(net, ENGINE.model_copy(update={"precision": p}))(ids, ids, None) for p in ("fp32", "bf16")
    )
    assert low.dtype == torch.float32 and low.item() != full.item()
    assert low.item() == pytest.approx(full.item(), rel=0.02)
    low.backward()
    assert {p.grad.dtype for p in net.parameters()} == {torch.float32}


def test_a_parameter_without_a_gradient_is_left_alone_and_its_updates_are_not_counted():
    moved, still = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    optimizer = AdamW({"moved": moved, "still": still}, {"still"}, recipe(weight_decay=0.5))
    moved.grad = torch.ones(3)
    assert len(optimizer.gradients()) == 1
    optimizer.step(0.1)
    assert torch.equal(still, torch.ones(3)) and not torch.equal(moved, torch.ones(3))
    counts = {n: t.item() for n, t in optimizer.tensors().items() if n.startswith("updates.")}
    assert counts == {"updates.moved": 1.0, "updates.still": 0.0}
    optimizer.zero_grad()
    optimizer.step(0.1)
    assert moved.grad is None and counts["updates.moved"] == optimizer.tensors()["updates.moved"].item()


def test_two_updates_by_hand():
    """AdamW as its paper writes it, in float64; decay 0.5 on the first parameter only."""
    plan = recipe(weight_decay=0.5, betas=(0.9, 0.95), eps=1e-8)
    value = {"a": torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64)),
             "b": torch.nn.Parameter(torch.tensor([2.0], dtype=torch.float64))}  # fmt: skip
    optimizer = AdamW(value, {"b"}, plan)
    x, m, v = {"a": 2.0, "b": 2.0}, 0.0, 0.0
    for t, (g, rate) in enumerate(((3.0, 0.1), (-1.0, 0.05)), 1):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        step = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)) ** 0.5 + 1e-8)
        for name, decay in (("a", 0.5), ("b", 0.0)):
            x[name] = x[name] * (1 - rate * decay) - rate * step
            value[name].grad = torch.tensor([g], dtype=torch.float64)
        optimizer.step(rate)
    assert {n: p.item() for n, p in value.items()} == pytest.approx(x, rel=1e-6)


def test_a_run_state_names_every_weight_once_and_its_facts_are_json(tmp_path):
    net = lm("iha", dtype=torch.float32)
    optimizer = AdamW(dict(net.named_parameters()), net.no_decay_names(), recipe())
    names = {n for n, _ in net.named_parameters()}
    kinds = ("weight", "exp_avg", "exp_avg_sq", "updates")
    assert set(state_tensors(net, optimizer)) == {f"{kind}.{n}" for kind in kinds for n in names}
    loop = make_loop(tmp_path, recipe())
    counters = Counters(step=3, tokens=9, digest="ab", milestones={"2": "cd"})
    facts = json.loads(json.dumps(state_metadata(counters, loop.guard)))
    expected, back = torch.rand(3), Counters()
    restore_metadata(facts, back, loop.guard)
    assert back == counters and torch.equal(torch.rand(3), expected)
