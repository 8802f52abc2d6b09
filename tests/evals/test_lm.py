"""The lm-eval adapter: one BOS, no silent truncation, log-likelihoods, samples of one question, chat prompts."""

from __future__ import annotations

import sys

import pytest
import torch
from datalab import SIZE, tokenizer
from evallab import KINDS, Scripted, ids, net
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from iha.cli import main
from iha.errors import ConfigError, DataError
from iha.evals.generate import Answer, AnswerJournal, Sampling
from iha.evals.lm import DEFAULT_MAX_GEN, IhaLM, sampling_of
from iha.model.files import save_model

GREEDY = {"until": [], "do_sample": False, "max_gen_toks": 6}
SAMPLED = {**GREEDY, "do_sample": True, "temperature": 4.0}


def adapter(model=None, **options):
    return IhaLM(model or net("iha"), tokenizer(), **{"max_length": 256, "batch_size": 4, **options})


def ask(text, **generation):
    return Instance("generate_until", {}, (text, {**GREEDY, **generation}), 0, ("task", 0, 1))


def score(context, continuation):
    return Instance("loglikelihood", {}, (context, continuation), 0, ("task", 0, 1))


def test_it_is_registered():
    assert get_model("iha") is IhaLM


def test_exactly_one_bos_in_plain_and_chat_prompts():
    """Also where the text itself spells BOS: text never becomes a control token."""
    lm, bos = adapter(), tokenizer().bos
    rendered = lm.apply_chat_template([{"role": "user", "content": "<|begin_of_text|> the cat"}])
    for prompt in ("the cat", "<|begin_of_text|>the cat", "<|begin_of_text|><|begin_of_text|>", rendered):
        got = lm.tok_encode(prompt)
        assert got[0] == bos and got.count(bos) == 1
    assert bos not in lm.tok_encode("the cat", add_special_tokens=False)


def test_every_request_is_checked(monkeypatch):
    lm, bos = adapter(), tokenizer().bos
    monkeypatch.setattr(lm.tokens, "encode_chat", lambda *_, **__: ([bos, bos, 20], None))
    text = lm.apply_chat_template([{"role": "user", "content": "the cat"}])
    with pytest.raises(DataError, match="one BOS at its front, has 2"):
        lm.generate_until([ask(text)])


def test_a_chat_prompt_is_the_tokenizers_own():
    lm = adapter()
    turns = [{"role": "system", "content": "sat"}, {"role": "user", "content": "the cat "}]
    assert lm.tok_encode(lm.apply_chat_template(turns)) == tokenizer().encode_chat(turns, add_generation_prompt=True)[0]


def test_an_answer_prefix_stands_after_the_assistants_header():
    lm = adapter()
    user = {"role": "user", "content": "where is the cat"}
    text = lm.apply_chat_template([user, {"role": "assistant", "content": "it sat on"}], add_generation_prompt=False)
    head, _ = tokenizer().encode_chat([user], add_generation_prompt=True)
    assert lm.tok_encode(text) == [*head, *tokenizer().encode_text("it sat on")]


@pytest.mark.parametrize("most", [64, 65])
def test_a_limit_that_leaves_no_room_is_an_error_before_anything_runs(most):
    model = Scripted({})
    with pytest.raises(ConfigError, match=f"evals.max_new_tokens: {most} .* max_length 64; allowed: below 64"):
        adapter(model, max_length=64).generate_until([ask("the cat"), ask("a dog", max_gen_toks=most)])
    assert model.forwards == []


def test_a_prompt_that_does_not_fit_is_recorded_and_never_cut(caplog):
    short, long = "a dog", "the cat sat on a mat and " * 9
    model = Scripted({ids(short)[-1]: [20, 21]})
    answers = adapter(model, max_length=64).answers([ask(long), ask(short)])
    assert answers[0] == Answer("", "no_room", 0) and answers[1].finish == "eos"
    assert model.prompts == [list(ids(short))]
    assert "1 of 2 prompts leave no room" in caplog.text


def test_a_prompt_that_just_fits_is_run_whole():
    text = "the cat sat on a mat"
    model = Scripted({ids(text)[-1]: [20]})
    answers = adapter(model, max_length=len(ids(text)) + 6).answers([ask(text)])
    assert answers[0].finish == "eos" and model.prompts == [list(ids(text))]


@pytest.mark.parametrize("kind", KINDS)
def test_loglikelihood_equals_the_full_forward(kind):
    context, continuation = "the cat sat", " on a mat"
    head, whole = ids(context), ids(context + continuation)
    logits = net(kind)(torch.tensor([whole])).log_softmax(-1)[0]
    expected = sum(logits[i - 1, whole[i]].item() for i in range(len(head), len(whole)))
    ((value, is_greedy),) = adapter(net(kind)).loglikelihood([score(context, continuation)])
    assert value == pytest.approx(expected, abs=1e-4)
    assert is_greedy == all(logits[i - 1].argmax() == whole[i] for i in range(len(head), len(whole)))


def test_loglikelihood_of_a_greedy_answer_is_greedy():
    lm = adapter()
    text = lm.generate_until([ask("the cat")])[0]
    (answer,) = lm.gold([("the cat", text)])
    if tokenizer().encode_text(text) == list(ids("the cat" + text)[len(ids("the cat")) :]):
        assert answer.correct == answer.tokens
    assert answer.tokens > 0


def test_loglikelihood_without_context_starts_at_bos():
    ((alone, _),) = adapter().loglikelihood([score("", "the cat")])
    logits = net("iha")(torch.tensor([ids("the cat")])).log_softmax(-1)[0]
    assert alone == pytest.approx(sum(logits[i, t].item() for i, t in enumerate(ids("the cat")[1:])), abs=1e-4)


def test_loglikelihood_refuses_what_it_would_have_to_cut():
    with pytest.raises(DataError, match="max_length is 8; nothing is cut"):
        adapter(max_length=8).loglikelihood([score("the cat sat on a mat and a dog ran", " to its end")])


def test_rolling_scores_every_token_once_with_the_most_context():
    text = "the cat sat on a mat and a dog ran to its end with 7 hats; x = 3.14159"
    tokens = tokenizer().encode_text(text)
    assert len(tokens) > 20
    (short,) = adapter(max_length=9).loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    whole, total, at = [tokenizer().bos, *tokens], 0.0, 1
    while at < len(whole):
        end = min(at + 8, len(whole))
        start = max(0, end - 1 - 8)
        logits = net("iha")(torch.tensor([whole[start : end - 1]])).log_softmax(-1)[0]
        total += sum(logits[i - 1 - start, whole[i]].item() for i in range(at, end))
        at = end
    assert short == pytest.approx(total, abs=1e-3)
    (long,) = adapter().loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
    ((direct, _),) = adapter().loglikelihood([score("", text)])
    assert long == pytest.approx(direct, abs=1e-3)


def test_a_request_that_stands_k_times_gives_k_samples_whatever_stands_around():
    lm, request = adapter(), ask("the cat", **SAMPLED)
    three = lm.generate_until([request] * 3)
    assert len(set(three)) > 1
    other = ask("a dog ran", **SAMPLED)
    mixed = adapter(batch_size=2).generate_until([other, request, other, request, request])
    assert [mixed[1], *mixed[3:]] == three


def test_two_items_with_one_prompt_get_the_same_answers():
    twins = [ask("the cat", **SAMPLED), ask("the cat", **SAMPLED)]
    one, two = adapter().generate_until(twins)
    assert one == two


def test_the_sampling_seed_changes_the_samples():
    texts = {seed: adapter(seed=seed).generate_until([ask("the cat", **SAMPLED)] * 2) for seed in (1, 2)}
    assert texts[1] != texts[2]


def test_a_second_attempt_takes_up_the_journal_and_gives_the_same_answers(tmp_path):
    """Killed after 3 of 8 answers; the second attempt decodes the other 5 only."""
    requests = [request for text in ("the cat", "a dog ran") for request in [ask(text, **SAMPLED)] * 4]
    whole = adapter().answers(requests)

    class Killed(Exception):
        pass

    class Dying(AnswerJournal):
        def put(self, *args):
            super().put(*args)
            if len(self.known) == 3:
                raise Killed

    with pytest.raises(Killed), Dying(tmp_path / "answers.jsonl", "m") as journal:
        adapter(journal=journal).answers(requests)
    with AnswerJournal(tmp_path / "answers.jsonl", "m") as journal:
        assert len(journal.known) == 3
        assert adapter(journal=journal).answers(requests) == whole
    with AnswerJournal(tmp_path / "answers.jsonl", "m") as journal:
        assert len(journal.known) == 8
        assert adapter(Scripted({}), journal=journal).answers(requests) == whole, "no model needed"


def test_golds_given_with_the_requests_are_scored_on_their_prefill(monkeypatch):
    pairs = [("the cat", " sat on a mat"), ("a dog ran", " to its end")]
    lm = adapter()
    direct = lm.gold(pairs)
    both = adapter()
    both.answers([ask(context) for context, _ in pairs], dict(pairs))
    monkeypatch.setattr(both.model, "forward", None)  # a second pass would fail
    monkeypatch.setattr(both.model, "hidden", None)
    for one, two in zip(both.gold(pairs), direct, strict=True):
        assert one.nll == pytest.approx(two.nll, abs=1e-3) and one.tokens == two.tokens


def test_a_gold_that_does_not_fit_is_not_measured():
    assert adapter(max_length=8).gold([("the cat sat on a mat", " and a dog ran"), ("a", " b")])[0] is None


def test_generation_arguments_as_lm_eval_means_them():
    assert sampling_of({"until": "x"}) == Sampling(DEFAULT_MAX_GEN, ("x",))
    assert sampling_of({"do_sample": False, "temperature": 0.9, "top_p": 0.5}) == Sampling(DEFAULT_MAX_GEN)
    assert sampling_of({"temperature": 0.9}, seed=3) == Sampling(DEFAULT_MAX_GEN)
    full = {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "max_gen_toks": 9, "until": ["a", ""]}
    assert sampling_of(full, seed=3) == Sampling(9, ("a",), 0.6, 0.95, 3)


def test_it_can_be_built_from_folders(tmp_path):
    save_model(net("diff"), tmp_path, {})
    arguments = {"path": tmp_path, "tokenizer": tokenizer().folder, "max_length": 256}
    lm = get_model("iha").create_from_arg_obj(arguments, {"batch_size": 2, "device": None})
    assert lm.batch_size == 2 and lm.model.vocab_size == SIZE
    assert lm.generate_until([ask("the cat")]) == adapter(net("diff")).generate_until([ask("the cat")])


def test_a_prompt_that_ends_in_a_blank_is_continued_as_it_is_generated_from():
    """lm-eval moves the blank to the continuation; then the gold would be scored after another prompt."""
    lm, prompt = adapter(), "the cat sat on "
    lm.answers([ask(prompt)], {prompt: "a mat"})
    (gold,) = lm.gold([(prompt, "a mat")])
    tail = tokenizer().encode_text("a mat")
    logits = net("iha")(torch.tensor([[*ids(prompt), *tail]])).log_softmax(-1)[0]
    expected = sum(logits[len(ids(prompt)) - 1 + i, token].item() for i, token in enumerate(tail))
    assert gold.nll == pytest.approx(-expected, abs=1e-3) and gold.tokens == len(tail)


@pytest.mark.parametrize("arguments", [["--model", "iha", "--tasks", "gsm8k"], ["-h"], ["ls", "tasks"], []])
def test_all_arguments_of_the_command_are_lm_evals(monkeypatch, arguments):
    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv[1:]))
    before = sys.argv
    main(["lm-eval", *arguments])
    assert seen == [arguments] and sys.argv is before
