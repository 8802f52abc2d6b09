"""Export for transformers, and lm-eval's own command line: equal logits, texts and scores, without this project."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from datalab import tokenizer
from datasets import Dataset
from evallab import KINDS, mirror, net, tasks
from lm_eval.api.task import ConfigurableTask
from lm_eval.evaluator import evaluate
from trainlab import Lab, plain_store, recipe, train_slice

from iha.cli import main
from iha.errors import DataError
from iha.evals.generate import left_pad
from iha.evals.lm import IhaLM
from iha.export import export_model
from iha.model.files import load_model, read_header, save_model, tokenizer_of

PROMPTS = ["the cat", "the cat sat on a mat and a dog ran to its end with 7 hats", "x = 3.14159"]
NEW = 12
MAX_LENGTH = 4000
#: Runs where `iha` cannot be imported.
STRANGER = """
import json, sys
sys.modules["iha"] = None
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
prompts, new, *folders = json.loads(sys.argv[1])
found = {}
for folder in folders:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    batch = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        logits = model(**batch).logits[:, -1]
        cached = model.generate(**batch, max_new_tokens=new)
        plain = model.generate(**batch, max_new_tokens=new, use_cache=False)
        beams = model.generate(**batch, max_new_tokens=new, num_beams=2)
    assert torch.equal(cached, plain)
    length = batch.input_ids.shape[1]
    found[folder] = [batch.input_ids.tolist(), logits.tolist(), cached[:, length:].tolist(), beams.shape[1] - length]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Kind -> exported folder; the models lie beside a folder `tokenizer`, as the workflow leaves them."""
    state = tmp_path_factory.mktemp("state")
    (state / "tokenizer").symlink_to(tokenizer().folder)
    for kind in KINDS:
        save_model(net(kind), state / "runs" / kind, {"variant": kind, "stage": "pretrain", "seed": 1})
        export_model(state / "runs" / kind, state / "hub" / kind)
    return {kind: state / "hub" / kind for kind in KINDS}


@pytest.mark.slow
def test_exported_models_equal_ours_where_this_project_is_unknown(exported):
    """Logits, greedy tokens (with and without cache) of a ragged batch; beam search runs."""
    request = json.dumps([PROMPTS, NEW, *map(str, exported.values())])
    command = [sys.executable, "-c", STRANGER, request]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    prompts = [[tokenizer().bos, *tokenizer().encode_text(text)] for text in PROMPTS]
    ids, pad = left_pad(prompts, tokenizer().pad, torch.device("cpu"))
    ends = {tokenizer().eos, tokenizer().eot}
    for kind, folder in exported.items():
        theirs, logits, texts, beams = found[str(folder)]
        assert theirs == ids.tolist()
        with torch.no_grad():
            ours = net(kind)(ids, pad=pad)[:, -1]
        torch.testing.assert_close(torch.tensor(logits), ours, rtol=1e-5, atol=1e-5)
        assert 0 < beams <= NEW
        for prompt, text in zip(prompts, texts, strict=True):
            row = list(prompt)
            while len(row) < len(prompt) + NEW and row[-1] not in ends:
                with torch.no_grad():
                    row.append(int(net(kind)(torch.tensor([row]))[0, -1].argmax()))
            assert text[: len(row) - len(prompt)] == row[len(prompt) :]


def test_an_exported_folder_is_whole_and_also_loads_here(exported):
    folder = exported["iha"]
    assert {path.name for path in folder.iterdir()} >= {
        "README.md", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "model.safetensors", "iha_model_hub.py", "iha_model_attention_iha.py",
    }  # fmt: skip
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(load_model(folder)(ids), net("iha")(ids))
    config, generation = (json.loads((folder / f"{n}.json").read_text()) for n in ("config", "generation_config"))
    assert config["eos_token_id"] == generation["eos_token_id"] == [tokenizer().eos, tokenizer().eot]
    assert config["max_position_embeddings"] == 8 * net("iha").pretrain_len
    card = (folder / "README.md").read_text()
    assert (
        f"{sum(p.numel() for p in net('iha').parameters()):,} parameters" in card and "trust_remote_code=True" in card
    )
    assert tokenizer_of(folder) == folder


def test_export_from_the_command_line_overwrites_nothing(exported, tmp_path, capsys):
    model, output = exported["diff"].parents[1] / "runs" / "diff", tmp_path / "out"
    (tmp_path / "out.tmp").mkdir()
    main(["export", str(model), str(output), "--max-length", "99"])
    assert json.loads((output / "config.json").read_text())["max_position_embeddings"] == 99
    assert [path.name for path in tmp_path.glob("*.tmp")] == ["out.tmp"], "not ours to remove, and nothing of ours"
    with pytest.raises(SystemExit):
        main(["export", str(model), str(output)])
    assert "exists; nothing is overwritten" in capsys.readouterr().err
    save_model(net("diff"), tmp_path / "alone", {})
    with pytest.raises(SystemExit):
        main(["export", str(tmp_path / "alone"), str(tmp_path / "other")])
    assert "no tokenizer" in capsys.readouterr().err and not (tmp_path / "other").exists()


def test_the_tokenizer_of_another_run_is_refused(tmp_path):
    """Of equal size, so that nothing else can tell."""
    state, sha = tmp_path / "state", tokenizer().sha256
    (state / "tokenizer").mkdir(parents=True)
    for path in tokenizer().folder.iterdir():
        (state / "tokenizer" / path.name).write_bytes(path.read_bytes())
    ids = state / "tokenizer" / "ids.json"
    ids.write_text(ids.read_text().replace(sha, "f00d" * 16))
    save_model(net("diff"), state / "final", {"stage": "sft", "tokenizer": sha})
    words = f"trained with tokenizer {sha[:12]}, but .*tokenizer holds f00df00df00d.*--tokenizer FOLDER"
    with pytest.raises(DataError, match=words):
        export_model(state / "final", tmp_path / "out")
    with pytest.raises(DataError, match=words):
        IhaLM.create_from_arg_obj({"path": state / "final"})
    assert not (tmp_path / "out").exists()
    export_model(state / "final", tmp_path / "out", tokenizer().folder)
    assert IhaLM.create_from_arg_obj({"path": tmp_path / "out"}).tokenizer_name == sha


def test_a_training_names_its_tokenizer_in_the_model(tmp_path):
    lab, part = Lab(tmp_path), train_slice(recipe=recipe(steps=2))
    store = plain_store(lab.state)
    lab.give("store", store.model_copy(update={"metadata": {**store.metadata, "tokenizer_sha256": "c0de"}}))
    code, text = lab.run(part)
    assert code == 0, text
    header = read_header(lab.folder(part) / "final")
    assert header["extra"] == {"stage": "pretrain", "variant": part.variant.name, "seed": 1, "tokenizer": "c0de"}


def test_an_export_that_cannot_be_finished_leaves_nothing(exported, tmp_path):
    own = tmp_path / "state"
    shutil.copytree(exported["diff"].parents[1] / "runs" / "diff", own / "runs")
    shutil.copytree(exported["diff"].parents[1] / "tokenizer", own / "tokenizer")
    (own / "tokenizer" / "gone").symlink_to("nowhere")
    with pytest.raises(shutil.Error):
        export_model(own / "runs", tmp_path / "out" / "hub")
    assert not list((tmp_path / "out").iterdir())


def completions() -> ConfigurableTask:
    """HumanEval's own solutions told from the next problem's, by log-likelihood."""
    docs = list(tasks("gsm8k", "math500", "mbpp", "humaneval")["humaneval"].test_docs())[:7]
    rows = [
        {"query": one["prompt"][-80:], "choices": [d["canonical_solution"][:60] for d in (one, two)], "gold": 0}
        for one, two in pairwise(docs)
    ]
    config = {
        "task": "completions", "custom_dataset": lambda **_: {"test": Dataset.from_list(rows)}, "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": "{{query}}", "doc_to_target": "gold", "target_delimiter": "",
        "doc_to_choice": "choices",
        "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")],
    }  # fmt: skip
    return ConfigurableTask(config=config)


@pytest.mark.parametrize("kind", ["iha", "diff"])
def test_lm_eval_gives_the_export_the_same_scores(kind, exported):
    """GSM8K with its stock prompt, and choices by log-likelihood: every text, every log-likelihood, every score."""
    from lm_eval.models.huggingface import HFLM  # 3 s, which not every worker has to spend

    stock = tasks("gsm8k", "math500", "mbpp", "humaneval")["gsm8k"]
    shots, generation = stock.config.num_fewshot, dict(stock.config.generation_kwargs)
    stock.set_config("num_fewshot", 1)
    stock.set_config("generation_kwargs", {"max_gen_toks": 12, "until": ["Question:", "zz"]}, update=True)
    ours = IhaLM(net(kind), tokenizer(), max_length=MAX_LENGTH, batch_size=3)
    theirs = HFLM(
        pretrained=str(exported[kind]), trust_remote_code=True, max_length=MAX_LENGTH, batch_size=3, device="cpu"
    )
    runs = []
    try:
        for lm in (ours, theirs):
            stock.set_fewshot_seed(seed=1234)
            chosen = {"gsm8k": stock, "completions": completions()}
            runs.append(evaluate(lm, {"tasks": chosen}, limit=6, bootstrap_iters=0, log_samples=True))
    finally:
        stock.set_config("num_fewshot", shots)
        stock.set_config("generation_kwargs", generation)
    one, two = runs
    assert [s["resps"] for s in one["samples"]["gsm8k"]] == [s["resps"] for s in two["samples"]["gsm8k"]]
    likelihoods = [
        [float(r[0][0]) for sample in run["samples"]["completions"] for r in sample["resps"]] for run in runs
    ]
    assert likelihoods[0] == pytest.approx(likelihoods[1], abs=1e-3) and len(set(likelihoods[0])) == 12
    scores = [{k: v for k, v in run["results"]["completions"].items() if k.startswith("acc")} for run in runs]
    assert scores[0] == scores[1] and 0 < scores[0]["acc,none"] < 1, "the comparison must be able to fail"


@pytest.mark.slow
def test_lm_eval_knows_the_model_on_its_own_command_line(exported, tmp_path):
    """`iha lm-eval --model iha --model_args path=...`, in a process, in the mirror; texts as the adapter gives."""
    command = [
        *(sys.executable, "-m", "iha.cli", "lm-eval", "--model", "iha", "--model_args"),
        *(f"path={exported['iha'].parents[1] / 'runs' / 'iha'},max_length={MAX_LENGTH}", "--tasks", "gsm8k"),
        *("--limit", "2", "--num_fewshot", "1", "--gen_kwargs", "max_gen_toks=8", "--log_samples", "-o", str(tmp_path)),
    ]
    done = subprocess.run(command, check=False, cwd=mirror(), capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "exact_match" in done.stdout
    (samples,) = tmp_path.rglob("samples_gsm8k_*.jsonl")
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    lm = IhaLM(net("iha"), tokenizer(), max_length=MAX_LENGTH)
    assert [row["doc_id"] for row in rows] == [0, 1] * 2, "a row per filter"
    for row in rows:
        (asked,) = [dict(zip(("context", "gen"), a.values(), strict=True)) for a in row["arguments"].values()]
        (answer,) = lm.answers([_Request((asked["context"], asked["gen"]), "gsm8k")])
        assert row["resps"] == [[answer.text]] and answer.tokens > 0


def test_nothing_of_this_project_runs_when_somebody_imports_torch():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert "entry-points" not in project


class _Request:
    def __init__(self, args, task_name):
        self.args, self.task_name = args, task_name
