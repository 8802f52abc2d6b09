"""Decoding at its limits: unicode stops, exact lengths, modes, sizes of batches; the adapter at the edge of its room."""

from __future__ import annotations

import json
import math

import pytest
import torch
from datalab import text_store, tokenizer
from evallab import KINDS, Scripted, generated, greedy, ids, net
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from reports import manifest

from iha.errors import DataError
from iha.evals import likelihood
from iha.evals.generate import (
    Answer,
    AnswerJournal,
    Draw,
    Request,
    Sampling,
    answer_key,
    choose,
    left_pad,
    prompt_digest,
    similar_lengths,
)
from iha.evals.likelihood import PARTS, gold_scores, position_loss
from iha.evals.lm import IhaLM
from iha.evals.run import draw_answers


def scripted(script, draw):
    start = ids("the cat")
    return next(iter(generated(Scripted({start[-1]: script}), [Request(start, (draw,))]).values()))


def tokens(text):
    return tokenizer().encode_text(text)


@pytest.mark.parametrize("stop", ["é", "😀", "—\n", "\u2028"])
def test_a_stop_string_of_several_bytes_stops_whichever_token_completes_it(stop):
    script = tokens(f"a dog{stop}ran")
    answer = scripted(script, greedy(60, stop=(stop,)))
    assert (answer.text, answer.finish) == ("a dog", "stop")
    assert tokenizer().decode(script[: answer.tokens - 1]).find(stop) == -1, "not a token later than needed"


def test_a_stop_string_at_the_very_start_leaves_an_empty_text():
    assert scripted(tokens("dog ran"), greedy(9, stop=("dog",))).text == ""
    assert scripted(tokens("dog ran"), greedy(99, stop=("cat",))).text == "dog ran"


@pytest.mark.parametrize(("spare", "finish"), [(-1, "length"), (0, "length"), (1, "eos")])
def test_evl_04_an_answer_of_just_the_limit_never_saw_its_end(spare, finish):
    script = tokens("on a mat")
    answer = scripted(script, greedy(len(script) + spare))
    assert answer.finish == finish and answer.tokens == len(script) + min(spare, 0)


def test_a_stop_that_the_last_token_completes_is_a_stop():
    script = tokens("a dog")
    assert scripted(script, greedy(len(script), stop=("dog",))).finish == "stop"


@pytest.mark.parametrize("training", [True, False])
def test_a_model_is_given_back_in_the_mode_it_came_in(training):
    model = net("global").train(training)
    try:
        generated(model, [Request(ids("the cat"), (greedy(2),))])
        gold_scores(model, [(ids("a"), ids("b"))], 1, 0)
        assert model.training is training
    finally:
        model.eval()


def test_no_jobs_are_no_work():
    assert generated(Scripted({}), []) == {} and gold_scores(net("global"), [], 4, 0) == []
    assert IhaLM(Scripted({}), tokenizer(), max_length=9).answers([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_gold_scores_do_not_depend_on_the_batch(kind, monkeypatch):
    pairs = [
        (ids("the cat"), ids(" sat")[1:]),
        (ids("a"), ids(" dog ran to its end")[1:]),
        (ids("x" * 9), ids("7")[1:]),
    ]
    whole = gold_scores(net(kind), pairs, 3, tokenizer().pad)
    for size, most in ((1, 10_000), (3, 1), (2, 30)):
        monkeypatch.setattr(likelihood, "BATCH_TOKENS", most)
        again = gold_scores(net(kind), pairs[::-1], size, tokenizer().pad)[::-1]
        assert [(s.correct, s.tokens) for s in again] == [(s.correct, s.tokens) for s in whole]
        assert [s.nll for s in again] == pytest.approx([s.nll for s in whole], abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 50))
def test_prompts_are_cut_into_runs_that_bear_their_padding(lengths, spare):
    prompts = [range(n) for n in sorted(lengths, reverse=True)]
    parts = list(similar_lengths(prompts, spare))
    assert [p for part in parts for p in part] == prompts and all(parts)
    assert all(sum(len(part[0]) - len(p) for p in part) <= spare for part in parts)


def test_prompts_are_padded_on_the_left():
    found, pads = left_pad([[1, 2, 3], [4], [5, 6]], 9, torch.device("cpu"))
    assert found.tolist() == [[1, 2, 3], [9, 9, 4], [9, 5, 6]] and pads.tolist() == [0, 2, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-8, 8), min_size=2, max_size=9),
    st.floats(0.1, 1.0),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.2, 2),
)
def test_a_token_is_where_the_cumulated_probabilities_pass_the_number(logits, top_p, number, temperature):
    """An own nucleus sampler in plain floats; a tie within rounding may go either way."""
    weights = [math.exp((x - max(logits)) / temperature) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-weights[i], i))
    total, kept, before = sum(weights), [], 0.0
    for i in order:
        if before < top_p * total:
            kept.append(i)
        before += weights[i]
    kept = kept if top_p < 1.0 else list(range(len(logits)))
    mass, reach, allowed = sum(weights[i] for i in kept), 0.0, set()
    for i in kept:
        low, reach = reach, reach + weights[i]
        if low / mass - 1e-9 <= number <= reach / mass + 1e-9:
            allowed.add(i)
    edge = any(abs(sum(weights[j] for j in order[:n]) / total - top_p) < 1e-9 for n in range(len(order)))
    sampling = Sampling(1, temperature=temperature, top_p=top_p)
    found = choose(torch.tensor([logits], dtype=torch.float64), sampling, [number]).item()
    assert found in allowed or edge


def test_a_prompt_and_a_draw_are_named_by_all_they_are():
    digests = {prompt_digest(p) for p in ((), (0,), (0, 0), (1,), (256,), (0, 1), (2**32 - 1,))}
    assert len(digests) == 7
    base = Sampling(4, ("a",), 0.5, 0.9, 1)
    others = [Sampling(5, ("a",), 0.5, 0.9, 1), Sampling(4, ("b",), 0.5, 0.9, 1), Sampling(4, ("a",), 0.6, 0.9, 1)]
    others += [Sampling(4, ("a",), 0.5, 0.8, 1), Sampling(4, ("a",), 0.5, 0.9, 2)]
    keys = [answer_key("m", (1, 2), Draw(s)) for s in (base, *others)]
    keys += [
        answer_key("n", (1, 2), Draw(base)),
        answer_key("m", (1,), Draw(base)),
        answer_key("m", (1, 2), Draw(base, 1)),
    ]
    assert len(set(keys)) == 9 and keys[0] == answer_key("m", (1, 2), Draw(base))


@pytest.mark.parametrize("text", ["", "é\u2028\x85\r\n", "\ud800", '"\\', "x" * 100_000])
def test_any_text_comes_back_from_a_journal(tmp_path, text):
    answer = Answer(text, "eos", 3)
    with AnswerJournal(tmp_path / "deep/a.jsonl", "m") as journal:
        journal.put((1,), greedy(), answer)
        journal.put((2,), greedy(), answer)
    with AnswerJournal(tmp_path / "deep/a.jsonl", "m") as journal:
        assert journal.get((1,), greedy()) == journal.get((2,), greedy()) == answer and len(journal.known) == 2


def test_a_journal_of_nothing_is_nothing(tmp_path):
    for content in (b"", b"cut"):
        (tmp_path / "a.jsonl").write_bytes(content)
        with AnswerJournal(tmp_path / "a.jsonl", "m") as journal:
            assert journal.known == {}
        assert (tmp_path / "a.jsonl").read_bytes() == b""
    with AnswerJournal(tmp_path / "a.jsonl", "m") as journal:
        journal.discard()
        journal.discard()


def score(context, continuation):
    return Instance("loglikelihood", {}, (context, continuation), 0, ("task", 0, 1))


@pytest.mark.parametrize("room", [-1, 0, 1])
def test_evl_04_a_request_of_just_the_whole_room_is_scored(room):
    head, whole = ids("the cat sat"), ids("the cat sat on a mat")
    lm = IhaLM(net("global"), tokenizer(), max_length=len(whole) + room)
    pair = ("the cat sat", " on a mat")
    if room < 0:
        with pytest.raises(
            DataError, match=rf"request 'the cat sat': {len(whole)} tokens, max_length is {len(whole) - 1}"
        ):
            lm.loglikelihood([score(*pair)])
        assert lm.gold([pair]) == [None]
    else:
        ((value, _),) = lm.loglikelihood([score(*pair)])
        (gold,) = lm.gold([pair])
        assert gold.nll == pytest.approx(-value, abs=1e-4) and gold.tokens == len(whole) - len(head)


def test_an_empty_gold_is_not_measured_and_an_empty_text_has_no_likelihood():
    lm = IhaLM(net("global"), tokenizer(), max_length=64)
    assert lm.gold([("the cat", "")]) == [None]
    assert lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("",), 0)]) == [0.0]


def test_replies_come_back_by_their_orders():
    start = ids("the cat")[-1]
    lm = IhaLM(Scripted({start: tokens("hats")}), tokenizer(), max_length=64)
    request = Instance("generate_until", {}, ("the cat", {"max_gen_toks": 9}), 0, ("t", 0, 1))
    other = Instance("generate_until", {}, ("a dog the cat", {"max_gen_toks": 9}), 0, ("t", 1, 1))
    assert draw_answers(lm, [(request, 2), (other, 0), (other, 1)]) == [
        [Answer("hats", "eos", 1)] * 2,
        [],
        [Answer("hats", "eos", 1)],
    ]
    assert draw_answers(lm, []) == []


def run_of(length, steps=1):
    part = {"recipe": {"seq_len": length, "global_batch": 1}, "seed": 1, "pretrain_len": 64}
    return manifest("extend", {"steps": steps}, part)


@pytest.mark.parametrize("length", [1, 8, 40])
def test_parts_without_a_token_are_not_measured(tmp_path, length):
    """Fewer positions than parts: each position is a part of its own, the others are blank."""
    store = text_store(tmp_path, ["cat " * 30] * 5)
    found = position_loss(net("global"), store, run_of(length))
    assert len(found["loss"]) == len(found["tokens"]) == PARTS
    places = {n * PARTS // length for n in range(length)}
    for part in range(PARTS):
        assert (found["tokens"][part] > 0) == (found["loss"][part] is not None)
        assert part in places or found["loss"][part] is None
    json.dumps(found, allow_nan=False)


def test_a_store_of_two_sequences_gives_two(tmp_path):
    store = text_store(tmp_path, ["cat " * 19])
    found = position_loss(net("global"), store, run_of((store.n_tokens - 1) // 2))
    assert found["sequences"] == 2 and found["unseen"] is False, "training began with this text"
    assert position_loss(net("global"), store, run_of((store.n_tokens - 1) // 2, steps=0))["unseen"]
