"""Decoding: an answer depends on weights, prompt and draw alone; stops, ends and limits; one prefill per prompt."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from datalab import tokenizer
from evallab import KINDS, Scripted, draws, generated, greedy, ids, net

from iha.evals.generate import (
    PASS_TOKENS,
    AnswerJournal,
    Draw,
    Generator,
    Request,
    Sampling,
    choose,
    prefill,
    similar_lengths,
    uniform,
)
from iha.evals.likelihood import gold_scores


def prompt(length, seed=0):
    return (tokenizer().bos, *random.Random(seed).choices(range(10, 300), k=length - 1))


@pytest.mark.parametrize("kind", KINDS)
def test_evl_01_greedy_answers_do_not_depend_on_the_batch(kind):
    """Prompts of 3, 7 and 40 tokens: left-padded together and alone give the same text."""
    jobs = [Request(prompt(n, n), (greedy(8),)) for n in (3, 7, 40)]
    together = generated(net(kind), jobs, batch_size=3)
    alone = [generated(net(kind), [job]) for job in jobs]
    assert together == {k: v for answers in alone for k, v in answers.items()}
    assert len({answer.text for answer in together.values()}) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_evl_01_sampled_answers_do_not_depend_on_batch_size_order_or_neighbours(kind):
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


def test_evl_04_an_answer_that_hits_the_limit_says_so_and_has_no_end():
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
