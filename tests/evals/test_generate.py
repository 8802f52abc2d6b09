"""Decoding: an answer depends on weights, prompt and draw alone; stops, ends and limits; one prefill per prompt."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import pytest
import torch
from datalab import text_store, tokenizer
from evallab import KINDS, Scripted, draws, generated, greedy, ids, net
from hypothesis import given, settings
from hypothesis import strategies as st
from lm_eval.api.instance import Instance
from reports import manifest

from iha.errors import DataError
from iha.evals import likelihood
from iha.evals.generate import (
    PASS_TOKENS,
    Answer,
    AnswerJournal,
    Draw,
    Generator,
    Request,
    Sampling,
    answer_key,
    choose,
    left_pad,
    prefill,
    prompt_digest,
    similar_lengths,
    uniform,
)
from iha.evals.likelihood import PARTS, gold_scores, position_loss
from iha.evals.lm import IhaLM
from iha.evals.run import draw_answers


def prompt(length, seed=0):
    return (tokenizer().bos, *random.Random(seed).choices(range(10, 300), k=length - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_do_not_depend_on_the_batch(kind):
    """Prompts of 3, 7 and 40 tokens: left-padded together and alone give the same text."""
    jobs = [Request(prompt(n, n), (greedy(8),)) for n in (3, 7, 40)]
    together = generated(net(kind), jobs, batch_size=3)
    alone = [generated(net(kind), [job]) for job in jobs]
    assert together == {k: v for answers in alone for k, v in answers.items()}
    assert len({answer.text for answer in together.values()}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_answers_do_not_depend_on_batch_size_order_or_neighbours(kind):
    jobs = [Request(prompt(n, n), draws(3, tokens=6)) for n in (5, 9, 13)]
    first = generated(net(kind), jobs, batch_size=9)
    assert len(set(map(repr, first.values()))) > 3, "samples differ"
    for size, order in ((1, jobs), (4, jobs[::-1]), (2, jobs[1:])):
        again = generated(net(kind), order, batch_size=size)
        assert again == {key: first[key] for key in again}


def test_a_sample_is_named_by_seed_prompt_and_number():
    """Golden value: another machine, another year, the same random number."""
    assert uniform(5, b"0123456789abcdef", 2, 7) == 0.8249058136790359
    values = [uniform(1, b"p" * 16, sample, step) for sample in range(20) for step in range(100)]
    assert len(set(values)) == 2000 and all(0 <= v < 1 for v in values)
    assert abs(sum(values) / 2000 - 0.5) < 0.02
    assert uniform(1, b"p" * 16, 0, 0) != uniform(2, b"p" * 16, 0, 0) != uniform(1, b"q" * 16, 0, 0)


def test_choose_follows_the_softmax_at_its_temperature():
    logits = torch.tensor([[1.0, 0.0, -1.0, 2.0]])
    sampling = Sampling(1, temperature=0.5)
    points = [(i + 0.5) / 20_000 for i in range(20_000)]
    picks = Counter(choose(logits.expand(len(points), -1), sampling, points).tolist())
    for token, p in enumerate((logits[0] / 0.5).softmax(-1).tolist()):
        assert abs(picks[token] / len(points) - p) < 2e-4
    assert choose(logits, Sampling(1), ()).tolist() == [3]


def test_choose_keeps_the_smallest_set_of_top_p():
    """Probabilities .5 .3 .15 .05: top-p .7 keeps two, .8 keeps two (it is reached), .81 three."""
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3]).log()[None]
    points = [i / 1000 for i in range(1000)] + [1 - 2**-53]
    for top_p, kept in ((0.7, {1, 3}), (0.5, {1}), (0.81, {1, 3, 0})):
        chosen = choose(logits.expand(len(points), -1), Sampling(1, temperature=1.0, top_p=top_p), points)
        assert set(chosen.tolist()) == kept, top_p


def test_choose_never_takes_a_token_of_probability_zero():
    logits = torch.tensor([[0.0, 1.0, -torch.inf, -torch.inf]])
    assert choose(logits, Sampling(1, temperature=1.0), [1 - 2**-53]).tolist() == [1]


def test_choose_mixes_greedy_and_sampled_rows_of_one_prompt():
    both = (greedy(6), *draws(2, tokens=6))
    together = generated(net("global"), [Request(prompt(9), both)])
    assert together == {k: v for d in both for k, v in generated(net("global"), [Request(prompt(9), (d,))]).items()}


def text_of(*texts, end=True):
    script = [i for text in texts for i in tokenizer().encode_text(text)]
    return [*script, tokenizer().eos] if end else script


def scripted(script, draw):
    start = ids("the cat")
    return next(iter(generated(Scripted({start[-1]: script}), [Request(start, (draw,))]).values()))


def test_an_end_token_ends_the_answer_and_is_not_part_of_it():
    for end in (tokenizer().eos, tokenizer().eot):
        answer = scripted([*text_of("on a mat", end=False), end, *text_of("never")], greedy(50))
        assert (answer.text, answer.finish) == ("on a mat", "eos")


def test_a_stop_string_is_cut_off_wherever_tokens_break():
    answer = scripted(text_of("a dog", " ran", "\n\nQues", "tion: why"), greedy(50, stop=("Question:", "xyz")))
    assert (answer.text, answer.finish) == ("a dog ran\n\n", "stop")


def test_the_earliest_of_several_stop_strings_cuts():
    answer = scripted(text_of("the mat and a dog"), greedy(50, stop=("dog", "mat")))
    assert answer.text == "the "


def test_an_answer_that_hits_the_limit_says_so_and_has_no_end():
    answer = scripted(text_of("on a mat and on a mat"), greedy(3))
    assert (answer.finish, answer.tokens) == ("length", 3)
    assert answer.text == tokenizer().decode(text_of("on a mat and on a mat")[:3])


def test_finished_rows_leave_the_batch_and_samples_share_one_prefill():
    """Two prompts, three samples of the first; the first's script is 2 tokens long, the second's 5."""
    one, two = (*prompt(6, 1)[:-1], 11), (*prompt(9, 2)[:-1], 12)
    model = Scripted({11: [20, 21], 12: [20, 21, 22, 23, 24]})
    generated(model, [Request(one, draws(3, tokens=50)), Request(two, (greedy(50),))], batch_size=4)
    assert model.forwards == [(2, 9), (4, 1), (4, 1), (1, 1), (1, 1), (1, 1)]
    assert model.prompts == [list(two), list(one)], "the longest first"


def batches(sizes, **limits):
    """Rows of the first decode step of each batch, for prompts that want two tokens."""
    model = Scripted({30: [20, 21]})
    jobs = [Request((*prompt(n - 5, n)[:-1], 30), (greedy(5),)) for n in sizes]
    generated(model, jobs, **limits)
    assert [len(p) + 5 for p in model.prompts] == sorted(sizes, reverse=True)
    return [rows for rows, tokens in model.forwards if tokens == 1][::2]


def test_batches_hold_alike_jobs_within_their_two_limits():
    sizes = [1000, 900, 750, 400, 390, 380]
    assert batches(sizes, batch_size=8) == [3, 3]
    assert batches(sizes, batch_size=8, batch_tokens=2000) == [2, 1, 3]
    assert batches(sizes, batch_size=2) == [2, 1, 2, 1]
    assert batches((200, 90, 60), batch_size=8) == [3], "little padding beats more steps"


def test_prompts_of_a_batch_are_prefilled_in_parts_of_like_length():
    """16 tokens of padding cost as much as a pass on a CPU: 40, 35, 30 bear 15, the fourth would make it 31."""
    parts = [list(map(len, part)) for part in similar_lengths([range(n) for n in (40, 35, 30, 24, 24, 3)], 16)]
    assert parts == [[40, 35, 30], [24, 24], [3]]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_prefilled_in_parts_equal_rows_prefilled_together(kind, monkeypatch):
    """Local windows are 4 tokens here: prompts below, at and far above them."""
    prompts = [prompt(n, n) for n in (60, 40, 39, 6, 4, 2)]
    logits = []
    for spare in (0, 16, 10_000):
        monkeypatch.setitem(PASS_TOKENS, "cpu", spare)
        with torch.no_grad():
            cache, first = prefill(net(kind), prompts, tokenizer().pad, torch.device("cpu"))
            steps = [net(kind)(torch.full((6, 1), 20 + i), cache=cache)[:, -1] for i in range(5)]
        assert cache.length == 65 and cache.longest_pad == 58
        logits.append(torch.stack([first, *steps]))
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=0, atol=2e-4)


def test_an_empty_cache_is_not_joined():
    model = net("global")
    with pytest.raises(ValueError, match="empty"):
        model.new_cache(1).join([model.new_cache(1)])


@pytest.mark.parametrize("kind", KINDS)
def test_golds_scored_on_the_prefill_equal_the_teacher_forced_ones(kind):
    jobs = [Request(prompt(n, n), draws(3, 4), gold=prompt(size, 50 + n)[1:]) for n, size in ((5, 2), (9, 8), (30, 21))]
    results = Generator(net(kind), tokenizer(), 2).run(jobs)
    direct = gold_scores(net(kind), [(job.prompt, job.gold) for job in jobs], 3, tokenizer().pad)
    for result, score in zip(results, direct, strict=True):
        assert len(result.answers) == 3, "its samples span two batches"
        assert (result.gold.tokens, result.gold.correct) == (score.tokens, score.correct)
        assert result.gold.nll == pytest.approx(score.nll, abs=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_gold_scores_equal_the_full_forward(kind):
    model, context, gold = net(kind), prompt(11, 1), prompt(7, 2)
    logits = model(torch.tensor([[*context, *gold]])).log_softmax(-1)[0, len(context) - 1 : -1]
    short = (prompt(4, 3), prompt(2, 4))
    score, _ = gold_scores(model, [(context, gold), short], 2, tokenizer().pad)
    assert score.nll == pytest.approx(-sum(logits[i, t].item() for i, t in enumerate(gold)), abs=1e-4)
    assert score.correct == sum(logits[i].argmax().item() == t for i, t in enumerate(gold))


def test_the_journal_keeps_answers_of_the_same_model_and_draw_only(tmp_path):
    path, draw = tmp_path / "answers.jsonl", greedy(4)
    answer = next(iter(generated(net("global"), [Request(prompt(5), (draw,))]).values()))
    with AnswerJournal(path, "weights A") as journal:
        journal.put(prompt(5), draw, answer)
    with AnswerJournal(path, "weights A") as journal:
        assert journal.get(prompt(5), draw) == answer
        assert journal.get(prompt(6), draw) is None
        assert journal.get(prompt(5), Draw(draw.sampling, 1)) is None
        assert journal.get(prompt(5), greedy(5)) is None
    with AnswerJournal(path, "weights B") as journal:
        assert journal.get(prompt(5), draw) is None


def test_a_journal_line_cut_by_a_kill_is_dropped_and_the_file_goes_on(tmp_path):
    path = tmp_path / "answers.jsonl"
    answer = next(iter(generated(net("global"), [Request(prompt(5), (greedy(4),))]).values()))
    with AnswerJournal(path, "m") as journal:
        journal.put(prompt(5), greedy(4), answer)
        journal.put(prompt(6), greedy(4), answer)
    path.write_bytes(path.read_bytes()[:-9])
    with AnswerJournal(path, "m") as journal:
        assert journal.get(prompt(5), greedy(4)) == answer and journal.get(prompt(6), greedy(4)) is None
        journal.put(prompt(7), greedy(4), answer)
    with AnswerJournal(path, "m") as journal:
        assert journal.get(prompt(7), greedy(4)) == answer
        journal.discard()
    assert not path.exists()


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
def test_an_answer_of_just_the_limit_never_saw_its_end(spare, finish):
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
def test_a_request_of_just_the_whole_room_is_scored(room):
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
