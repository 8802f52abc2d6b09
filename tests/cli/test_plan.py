"""`iha plan`: sums that add up, an order that the DAG allows, numbers that published runs make plausible."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import iha.studies.price  # noqa: F401 (registers the prices of the studies)
from iha.cli import main
from iha.config.load import load_config, parse_config
from iha.config.schema import Config
from iha.config.studies import SeparationConfig
from iha.errors import ConfigError
from iha.planning.dag import ledger_slice
from iha.planning.flops import ledger
from iha.planning.price import BATCH_TOKENS, Job, Machine, critical_path, jobs, plan, wall_seconds
from iha.studies.relations import grid
from iha.studies.separation.grid import Point

ROOT = Path(__file__).parents[2]
PAPER, SMOKE, RELATIONS, SEPARATION = (
    ROOT / "configs" / f"{name}.yaml" for name in ("paper", "smoke", "synthetic", "separation")
)


@pytest.fixture(scope="module")
def paper():
    return plan(load_config(PAPER))


def test_totals_are_the_sums_of_the_rules(paper):
    for key in ("jobs", "gpu_hours", "cpu_hours", "checkpoint_bytes", "log_bytes", "data_bytes", "energy_kwh", "cost"):
        assert paper["total"][key] == pytest.approx(sum(row[key] for row in paper["rules"].values()))
    rows = paper["rules"].values()
    assert paper["total"]["memory_bytes_per_rank"] == max(row["memory_bytes_per_rank"] for row in rows)
    config = load_config(PAPER).plan
    total = paper["total"]
    assert total["cost"] == pytest.approx(
        config.price_per_gpu_hour * total["gpu_hours"] + config.price_per_core_hour * total["cpu_hours"]
    )


def test_the_json_is_what_the_command_prints(capsys, paper, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where nothing has been run
    main(["plan", "--config", str(PAPER), "--json"])
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(paper))
    main(["plan", "--config", str(SMOKE)])
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:3] == ["rule", "jobs", "core-minutes"]
    assert "Critical path" in out
    assert "predicted" not in out


def test_the_papers_pretraining_is_as_fast_as_published_trainings_of_its_kind(paper):
    """12 L D S convention: torchtitan 8B on 128 H100 38 %, OLMo 3 7B 36 to 43 %, KempnerForge 8B on 4 H200 54 %."""
    row = paper["trainings"]["pretrain"]["global"]
    assert 0.36 < row["mfu_12lds"] < 0.54
    assert 17_000 < row["tokens_per_second"] < 28_600
    hours = next(j.gpu_hours for j in jobs(load_config(PAPER)) if j.name == "pretrain-global-seed1")
    assert hours == pytest.approx(240_000 * 2**20 / row["tokens_per_second"] / 3600, rel=0.01)


def test_training_flops_are_the_ledgers():
    config = load_config(PAPER)
    rows = ledger(ledger_slice(config))["variants"]
    for job in jobs(config):
        if job.rule in ("pretrain", "extend", "sft"):
            assert job.flops == rows[job.name.split("-")[1]]["train_flops"][job.rule]


def test_no_training_is_faster_than_the_peak(paper):
    for stage in paper["trainings"].values():
        assert all(0 < row["mfu"] < 0.6 for row in stage.values())


def test_what_is_priced_fits_the_memory(paper):
    limit = load_config(PAPER).plan.memory_gb * 1e9
    assert all(row["memory_bytes_per_rank"] < limit for row in paper["rules"].values())


@pytest.mark.parametrize("path", [PAPER, SMOKE])
def test_jobs_are_those_of_the_workflow_in_an_order_it_allows(path):
    config, seen = load_config(path), set()
    for job in jobs(config):
        assert job.name not in seen
        assert seen.issuperset(job.after), job
        assert job.seconds > 0
        seen.add(job.name)
    study = config.synthetic
    relations = len(study.tasks) + len(grid.runs(study)) + 1 if study else 0
    trainings = len(config.variants) * len(config.seeds)
    assert len(seen) == 5 + 6 + len({n for s in config.evals.suites for n in s.lengths}) + trainings * (
        3 + len(config.evals.suites)
    ) + relations + 1  # fmt: skip


CHAIN = [
    Job("a", "x", seconds=10.0),
    Job("b", "x", ("a",), gpus=2, seconds=5.0),
    Job("c", "x", ("a",), gpus=2, seconds=7.0),
    Job("d", "x", ("b", "c"), seconds=1.0),
]


def test_critical_path_is_the_longest_chain():
    assert critical_path(CHAIN) == (18.0, ["a", "c", "d"])


@pytest.mark.parametrize(("gpus", "seconds"), [(4, 18.0), (2, 23.0), (1, 23.0)])
def test_wall_time_depends_on_the_gpus_there_are(gpus, seconds):
    assert wall_seconds(CHAIN, gpus, 1) == seconds


def test_wall_time_is_between_the_critical_path_and_all_in_a_row(paper):
    total, chain = paper["total"], paper["critical_path"]
    assert chain["hours"] <= total["wall_hours"] < sum(j.seconds for j in jobs(load_config(PAPER))) / 3600
    assert total["wall_hours"] * 128 > total["gpu_hours"]


def test_gpus_are_those_that_the_batch_divides_over():
    machine = Machine(load_config(PAPER), Config().variant("global").attention)
    assert [machine.gpus(stage) for stage in ("pretrain", "extend", "sft")] == [128, 64, 96]
    with pytest.raises(ConfigError, match=r"plan.gpus.sft is 128; allowed: a divisor of sft.global_batch, 96"):
        plan(parse_config({"plan": {"gpus": {"sft": 128}}}))


def test_relation_composition_is_priced_up_to_its_budget(capsys):
    config = load_config(RELATIONS)
    made, study = plan(config), config.synthetic
    runs = [job for job in jobs(config) if job.rule == "synthetic_train"]
    assert len(runs) == len(grid.runs(study)) == 108
    budget = study.budget.flops
    assert all(0.95 * budget < job.flops < 1.8 * budget for job in runs), "training, validations and a test"
    assert list(made["rules"]) == ["synthetic_data", "synthetic_train", "synthetic_report"]
    free = parse_config({"goal": "synthetic", "synthetic": {"budget": {"epochs": 2}}, "plan": {"total_gpus": 0}})
    priced = {job.name: job for job in jobs(free)}
    part = grid.train_slice(free.synthetic, "binary", "iha", 1e-3, 0)
    job = priced["synthetic_train-binary-iha-lr0.001-seed0"]
    seen = 2 * (40_000 * 3 + 5_000 + 5_000) + 5_000
    assert job.flops == pytest.approx(part.flops / 40_000 / 3 * seen)
    assert job.seconds == pytest.approx(120 + job.flops / 15e9 + 2 * 157 * 0.004)
    main(["plan", "--config", str(RELATIONS)])
    assert "tokens/s" not in capsys.readouterr().out


def test_studies_run_on_a_gpu_if_there_is_one_except_the_separation():
    raw = {"synthetic": {}, "separation": {}}
    gpus = {goal: jobs(parse_config({"goal": goal, **raw}))[-2:][0].gpus for goal in ("synthetic", "separation")}
    assert gpus == {"synthetic": 1, "separation": 0}
    (job,) = jobs(parse_config({"goal": "separation", "separation": {"cpu_seconds": 60}}))
    assert job.seconds == 120 + 60


@pytest.mark.parametrize(("task", "layer", "size", "heads"), [("filters", "iha", 9, 3), ("cpm", "iha", 4, 4),
                                                              ("filters_free", "mha", 4, 2), ("cpm", "mha", 9, 1)])  # fmt: skip
def test_points_of_the_separation_cost_what_torch_counts(task, layer, size, heads):
    from torch import Generator
    from torch.utils.flop_counter import FlopCounterMode

    from iha.studies import price
    from iha.studies.separation import grid as points
    from iha.studies.separation import learn

    config, point = SeparationConfig(), Point(task, layer, size, heads)
    model, drawn = learn.learner(config, point, 0), learn.draw_task(config, point, 0)
    x, _ = drawn.batch(points.recipe(config, point).batch, Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counted:
        model(x)
    assert price.forward_flops(config, point) == counted.get_total_flops()


def test_a_prompt_is_read_once_however_many_answers_are_drawn():
    config = load_config(PAPER)
    machine = Machine(config, config.variant("global").attention)
    seconds = machine.answer_seconds
    reading = seconds(100, 1, 4096, 0)
    assert seconds(100, 16, 4096, 0) == reading > 0
    batch = seconds(1, 1, 4096, 8) - seconds(1, 1, 4096, 0)
    assert seconds(100, 16, 4096, 8) == pytest.approx(reading + 100 * batch)
    assert seconds(100, 1, 4096, 8) == pytest.approx(reading + 7 * batch)


def test_ruler_items_are_made_on_one_core():
    config = load_config(PAPER)
    made = [job for job in jobs(config) if job.rule == "ruler"]
    speed = config.plan.core_tokens_per_second
    assert config.runtime.workers > 1 and all(job.cores == 1 for job in made)
    for job in made:
        assert job.seconds == pytest.approx(config.plan.small_seconds + job.data_bytes / 4 / speed)


def test_the_profile_starts_as_many_ranks_as_are_priced():
    config = load_config(PAPER)
    machine = Machine(config, config.variant("global").attention)
    profile = yaml.safe_load((ROOT / "slurm" / "config.yaml").read_text())["set-resources"]
    for stage in ("pretrain", "extend", "sft"):
        nodes, gpus = (eval(profile[stage][key].replace("$IHA_SCALE", "paper")) for key in ("nodes", "gpus_per_node"))
        assert nodes * gpus == machine.gpus(stage)


def test_memory_falls_with_sharding_and_rises_with_length():
    config = load_config(PAPER)
    machine = Machine(config, config.variant("global").attention)
    alone = Machine(parse_config({"plan": {"gpus": {"pretrain": 1}}}), machine.attention)
    assert alone.training_memory("pretrain") > 2 * machine.training_memory("pretrain")
    assert machine.training_memory("extend") > machine.training_memory("pretrain")


def test_after_a_run_actual_stands_beside_predicted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "smoke" / "benchmarks"
    folder.mkdir(parents=True)
    head = "s\th:m:s\tmax_rss\tmax_vms\tmax_uss\tmax_pss\tio_in\tio_out\tmean_load\tcpu_time\n"
    (folder / "pretrain-iha-seed1.tsv").write_text(f"{head}90.0\t0:01:30\t500.0\t1\t1\t1\t1\t1\t1\t80.0\n")
    (folder / "flops.tsv").write_text(f"{head}1.0\t0:00:01\tNA\tNA\tNA\tNA\tNA\tNA\t0\t0\n")
    held = tmp_path / "state/smoke/runs/iha/seed1/pretrain/checkpoints/step_00000100"
    held.mkdir(parents=True)
    (held / "rank_0.safetensors").write_bytes(b"x" * 1000)
    (held.parent / "latest").symlink_to(held.name)
    (folder / "synthetic_train-binary-mha-lr0.001-seed0.tsv").write_text(f"{head}7.0\t0\t1\t1\t1\t1\t1\t1\t1\t1\n")
    run = tmp_path / "state/smoke/synthetic/binary/mha-lr0.001-seed0/checkpoints/step_00000032"
    run.mkdir(parents=True)
    (run / "rank_0.safetensors").write_bytes(b"x" * 30)
    made = plan(load_config(SMOKE))
    relation = made["rules"]["synthetic_train"]["actual"]
    assert (relation["jobs"], relation["checkpoint_bytes"]) == (1, 30)
    assert relation["cpu_hours"] == pytest.approx(7 / 3600)
    assert relation["predicted_cpu_hours"] == pytest.approx(8 / 3600, rel=0.2)
    row = made["rules"]["pretrain"]
    predicted = next(j.cpu_hours for j in jobs(load_config(SMOKE)) if j.name == "pretrain-iha-seed1")
    assert row["actual"]["jobs"] == 1
    assert row["actual"]["cpu_hours"] == pytest.approx(90 / 3600)
    assert row["actual"]["predicted_cpu_hours"] == pytest.approx(predicted)
    assert row["actual"]["memory_bytes_per_rank"] == 500 * 2**20
    assert row["actual"]["checkpoint_bytes"] == 1000
    assert made["total"]["actual"]["jobs"] == 3
    assert "actual" not in made["rules"]["sft"]
    main(["plan", "--config", str(SMOKE)])
    assert "actual and predicted" in capsys.readouterr().out


def test_what_is_too_large_is_said(capsys, tmp_path):
    path = tmp_path / "big.yaml"
    path.write_text("plan: {memory_gb: 20}\n")
    main(["plan", "--config", str(path)])
    assert "warning: extend needs more than the 20 GB of memory" in capsys.readouterr().out


def test_the_plan_is_made_without_torch():
    code = (
        "import sys; from iha.cli import main; [main(['plan', '--config', path]) for path in sys.argv[1:]]; "
        "sys.exit('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", code, PAPER, SMOKE, SEPARATION]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_batches_are_priced_as_they_are_decoded():
    from iha.evals import generate

    assert BATCH_TOKENS == generate.BATCH_TOKENS
