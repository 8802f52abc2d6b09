"""`train()` as a notebook calls it: plain batches, one process, and what is optional."""

import doctest

import pytest
import torch
from trainlab import Bigram, Kept, random_batches, recipe

from iha.errors import DataError, UserError
from iha.train import loop
from iha.train.checkpoint import steps_in
from iha.train.distributed import World
from iha.train.loop import IterableBatches, train


class Model(Bigram):
    """A bigram model with the face of a transformer."""

    def no_decay_names(self):
        return {"embed"}

    def lr_multipliers(self):
        return {}


def plain(steps, first=0):
    """Batches as pairs of tensors."""
    for step in range(first, steps):
        yield random_batches().of(step)


def test_the_documented_example_runs():
    results = doctest.testmod(loop)
    assert results.attempted > 10 and not results.failed


def test_an_iterable_trains_as_a_source_of_the_same_batches():
    rows = []
    for batches in (plain(8), random_batches()):
        kept, model = Kept(), Model()
        trainer = train(model, batches, recipe(steps=8), callbacks=[kept])
        assert (trainer.counters.step, trainer.counters.tokens, trainer.guard.skipped) == (8, 8 * 24, 0)
        rows.append((kept.rows, model.state_dict()))
    assert rows[0][0] == rows[1][0]
    assert all(torch.equal(rows[0][1][name], rows[1][1][name]) for name in rows[0][1])


def test_callbacks_run_in_order_and_may_extend_the_metrics():
    seen = []
    train(Model(), plain(3), recipe(steps=3), callbacks=[
        lambda step, metrics: metrics.update(twice=2 * metrics["loss"]),
        lambda step, metrics: seen.append((step, metrics["twice"] == 2 * metrics["loss"])),
    ])  # fmt: skip
    assert seen == [(1, True), (2, True), (3, True)]


def test_nothing_is_written_without_a_folder_and_a_folder_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    straight = Kept()
    train(Model(), plain(8), recipe(steps=8), callbacks=[straight])
    assert not list(tmp_path.iterdir())

    class Interrupted(Exception):
        pass

    def interrupt(step, metrics):
        if step == 6:
            raise Interrupted

    folder = tmp_path / "checkpoints"
    plan = recipe(steps=8, checkpoint_every=4)
    with pytest.raises(Interrupted):
        train(Model(), plain(8), plan, callbacks=[interrupt], checkpoints=folder)
    assert steps_in(folder) == [4]
    rest = Kept()
    train(Model(), plain(8), plan, callbacks=[rest], checkpoints=folder)
    assert rest.rows == {step: straight.rows[step] for step in range(5, 9)}


def test_batches_that_end_early_are_named_with_the_step():
    with pytest.raises(DataError, match="ended after 3 steps"):
        train(Model(), plain(3), recipe(steps=5))


def test_an_iterable_cannot_be_shared_by_ranks():
    with pytest.raises(ValueError, match="2"):
        IterableBatches(plain(3)).batch(0, 0, 2)
    assert World.single().is_main


def test_documents_of_an_iterable_reach_the_model_and_the_guard_ends_a_run():
    seen = []

    class Recording(Model):
        def hidden(self, tokens, doc_ids=None):
            seen.append(doc_ids)
            return super().hidden(tokens) * torch.nan

    docs = torch.zeros(4, 6, dtype=torch.int32)
    batches = [(*random_batches().of(step), docs) for step in range(3)]
    with pytest.raises(UserError, match="max_skipped"):
        train(Recording(), batches, recipe(steps=3, max_skipped=1))
    assert len(seen) == 2 and all(torch.equal(s, docs) for s in seen)
