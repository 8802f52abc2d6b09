"""What the grid says: equal epochs, equal compute, verdicts that are earned, and a folder of results that is stable."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from syntheticlab import tiny

from iha.artifacts.manifest import Manifest, read_manifest, sha256_file
from iha.config.load import load_config
from iha.config.studies import RelationBudget, RelationModel, RelationTask, SyntheticConfig
from iha.errors import ConfigError, DataError
from iha.report import relation_claims, relation_figures, relations
from iha.report.relation_section import captions, grid_of
from iha.stages import synthetic_data, synthetic_report, synthetic_train
from iha.studies.relations import collect, grid
from iha.studies.relations.results import Grid, Outcome, Point, label, outcome
from iha.studies.relations.shapes import data_slice, params, report_slice, train_slice

MODELS = (
    RelationModel(name="mha", attention="mha"),
    RelationModel(name="iha", attention="iha"),
    RelationModel(name="simplicial", attention="simplicial"),
)
CONFIG = SyntheticConfig(models=MODELS, lrs=(1e-3,), seeds=(0, 1, 2))
MAJORITY = {t.name: {"accuracy": 0.6, "by_size": {str(m): 0.6 for m in t.sizes}} for t in CONFIG.tasks}


def run(model, seed=0, accuracies=(0.7, 0.8, 0.75), task="binary", cost=10.0, stopped="epochs", test=None, step=1.0):
    points = tuple(
        Point(step * (i + 1), cost * step * (i + 1), 2 * cost * (i + 1), a, dict.fromkeys(CONFIG.task(task).sizes, a))
        for i, a in enumerate(accuracies)
    )
    test = accuracies[-1] if test is None and stopped else test
    sizes = {} if test is None else dict.fromkeys(CONFIG.task(task).sizes, test)
    return Outcome(task, model, 1e-3, seed, 1000, cost, stopped, points, test, sizes)


def seen(*outcomes, config=CONFIG):
    return Grid(config, outcomes, MAJORITY, dict.fromkeys(MAJORITY, 0.58))


def test_the_best_weights_are_those_of_the_first_best_validation():
    found = run("mha", accuracies=(0.7, 0.8, 0.8), test=0.79)
    assert (found.best.epoch, found.score) == (2.0, 0.79)
    going = run("mha", accuracies=(0.7, 0.8, 0.6), stopped=None)
    assert (going.test, going.score, going.score_by_size[6]) == (None, 0.8, 0.8)


def test_equal_epochs_and_equal_compute_stop_where_the_shorter_run_ends():
    mha, iha = run("mha", accuracies=(0.6, 0.7, 0.9), cost=1.0), run("iha", accuracies=(0.65, 0.8), cost=1.5)
    shown = seen(mha, iha)
    epochs, flops = (shown.gap("binary", 1e-3, ("iha", "mha"), axis) for axis in ("epoch", "flops"))
    assert (epochs.limit, epochs.mean) == (2.0, pytest.approx(0.1))
    assert (flops.limit, flops.mean) == (3.0, pytest.approx(0.8 - 0.9))
    assert shown.gap("ternary", 1e-3, ("iha", "mha"), "epoch") is None


def test_a_budget_that_ends_between_validations_is_read_between_them():
    """MHA ends at 4 FLOPs, IHA is validated at 3 and 6: a third of the way from 0.60 to 0.75, not 0.60."""
    mha, iha = run("mha", accuracies=(0.6, 0.6, 0.7, 0.66), cost=1.0), run("iha", accuracies=(0.6, 0.75), cost=3.0)
    found = seen(mha, iha).gap("binary", 1e-3, ("iha", "mha"), "flops")
    assert (found.limit, found.mean) == (4.0, pytest.approx(0.65 - 0.7))
    assert iha.at("flops", 2.9) is None and iha.at("flops", 6.1) is None
    assert iha.at("flops", 3.0) == 0.6
    falling = run("mha", accuracies=(0.8, 0.6, 0.9), cost=1.0)
    assert [falling.at("flops", x) for x in (1.5, 2.0, 2.5)] == [0.8, 0.8, pytest.approx(0.85)]


def test_a_difference_of_one_seed_is_called_inconclusive():
    one = seen(run("mha", accuracies=(0.9,)), run("iha", accuracies=(0.5,)))
    cell = relations.comparison_table(one, "paper").rows[0][3]
    assert (cell.main, cell.lines[0]) == ("-40.0", "inconclusive (one seed, no interval)")
    assert any(
        "one seed each, so without an interval: **inconclusive**" in line for line in relation_claims.sentences(one)
    )
    clear = seen(*three("mha", (0.9, 0.91, 0.9)), *three("iha", (0.5, 0.51, 0.51)))
    assert relations.comparison_table(clear, "paper").rows[0][3].lines[1] == "behind"
    assert relations.sure([1.0, -1.0, 0.5]) == "inconclusive"


def test_a_run_that_has_not_begun_within_the_limit_is_not_compared():
    cheap, dear = run("mha", accuracies=(0.6,), cost=1.0), run("iha", accuracies=(0.9,), cost=50.0)
    assert seen(cheap, dear).gap("binary", 1e-3, ("iha", "mha"), "flops") is None


def made(config, model, **changes):
    part = train_slice(config, "binary", model, 1e-3, 0)
    score = {"accuracy": 0.7, "by_size": {"6": 0.7}, "loss": 0.5}
    facts = {
        "task": "binary", "model": model, "lr": 1e-3, "seed": 0, "params": params(part.shape),
        "flops_per_epoch": part.flops, "stopped": "epochs", "test": score,
        "history": [{"epoch": 1.0, "cpu_s": 2.0, "validation": score}],
    }  # fmt: skip
    return Manifest(stage="synthetic_train", slice=part.model_dump(mode="json"), code="c0de", metadata=facts | changes)


def test_a_run_made_under_another_configuration_is_refused():
    four = RelationModel(name="iha", attention="iha", pseudo_heads=4, pseudo_queries=1)
    now, before = (
        CONFIG.model_copy(update={"models": (MODELS[0], four.model_copy(update={"pseudo_heads": p}))}) for p in (4, 8)
    )
    name = "synthetic_run:binary/iha-lr0.001-seed0"
    assert grid_of(now, {name: made(now, "iha")}).outcomes[0].model == "iha"
    with pytest.raises(DataError, match=r"binary/iha-lr0.001-seed0: shape, flops, params, flops_per_epoch differ"):
        grid_of(now, {name: made(before, "iha")})
    with pytest.raises(DataError, match="budget differ"):
        grid_of(now, {name: made(now.model_copy(update={"budget": RelationBudget(epochs=3)}), "iha")})
    with pytest.raises(DataError, match="flops_per_epoch differ"):
        grid_of(now, {name: made(now, "iha", flops_per_epoch=1e9)})


def test_flops_beside_mha_are_those_of_the_runs_counted_by_hand():
    """H = 8, D = 32, m = 4 to 6: multiply-adds of one query head on four pseudo-keys, and of plain attention."""
    d, h, k = 32, 8, 4
    cells = [16, 25, 36]
    shared = sum(n * (3 * d * d + d * d + 8 * d * d + d) for n in cells)
    plain = sum(2 * n * n * d for n in cells)
    interleaved = sum(h * h * (d // h) * (1 + 2 * k) * n + h * h * (d // h) * n + 2 * n * (k * n) * d for n in cells)
    ratio = (shared + interleaved) / (shared + plain)
    config = SyntheticConfig(
        tasks=(RelationTask(name="binary", hops=2, min_size=4, max_size=6, density=0.4),),
        models=(MODELS[0], RelationModel(name="q1", attention="iha", pseudo_heads=k, pseudo_queries=1)),
        lrs=(1e-3,), seeds=(0,), hidden_dim=d, n_heads=h,
    )  # fmt: skip
    runs = [made(config, name, test=None) for name in ("mha", "q1")]
    shown = grid_of(config, {f"synthetic_run:{i}": run for i, run in enumerate(runs)})
    assert shown.outcomes[1].flops_per_epoch / shown.outcomes[0].flops_per_epoch == pytest.approx(ratio)
    assert ratio == pytest.approx(7603 / 4857)


def three(model, values, **options):
    return [run(model, seed, accuracies=(v,), **options) for seed, v in enumerate(values)]


@pytest.mark.parametrize(
    ("iha", "simplicial", "stopped", "verdict", "why"),
    [
        ((0.95, 0.951, 0.949), (0.90, 0.90, 0.90), "patience", "supported", "significantly better"),
        ((0.90, 0.901, 0.899), (0.90, 0.90, 0.90), "patience", "contradicted", "ends below"),
        ((0.99, 0.90, 0.92), (0.90, 0.90, 0.90), "patience", "inconclusive", "hold both"),
        ((0.95, 0.951, 0.949), (0.90, 0.90, 0.90), "cpu_seconds", "inconclusive", "before early stopping"),
        ((0.95, 0.951, 0.949), (), "patience", "inconclusive", "not every pair"),
        ((0.95, 0.951), (0.90, 0.90), "patience", "inconclusive", "lack seeds"),
    ],
)
def test_a_verdict_needs_every_seed_run_to_early_stopping(iha, simplicial, stopped, verdict, why):
    shown = seen(*three("iha", iha, stopped=stopped), *three("simplicial", simplicial, stopped=stopped))
    found = relation_claims.verdicts(shown)[0]
    assert (found.task, found.claimed, found.verdict) == ("binary", 4.7, verdict)
    assert why in found.why.lower()


def test_a_verdict_corrects_for_the_learning_rates_that_were_tried():
    def pair(lr, gains):
        ended = [run(m, s, stopped="patience", test=0.8 + g * (m == "iha")) for s, g in enumerate(gains) for m in
                 ("iha", "simplicial")]  # fmt: skip
        return [replace(o, lr=lr) for o in ended]

    clear, nothing = pair(1e-3, (0.07, 0.05, 0.03)), pair(1e-4, (0.01, -0.01, 0.0))
    both = CONFIG.model_copy(update={"lrs": (1e-3, 1e-4)})
    assert relation_claims.verdicts(seen(*clear))[0].verdict == "supported"
    assert relation_claims.verdicts(seen(*clear, *nothing, config=both))[0].verdict == "inconclusive"


def test_a_grid_without_the_compared_models_says_so():
    found = relation_claims.verdicts(seen(config=CONFIG.model_copy(update={"models": MODELS[:2]})))[0]
    assert found.verdict == "inconclusive" and found.why == "Not tested: the grid has no 2-simplicial attention."


def test_tables_show_the_majority_how_far_each_run_went_and_what_is_missing():
    cost = train_slice(CONFIG, "binary", "iha", 1e-3, 0).flops
    shown = seen(*three("mha", (0.7, 0.72)), run("iha", accuracies=(0.8,), stopped=None, step=0.25, cost=cost))
    table = relations.task_table(shown, "binary", "ladder")
    rows = {row[0].main: row for row in table.rows}
    assert [t.main for t in rows["majority"]][6:8] == ["test", "60.0"]
    assert [t.main for t in rows["IHA 8 × 8"]][2:8] == ["1,000", "6.7", "0.25", "not over", "validation", "80.0"]
    assert rows["IHA 8 × 8"][6].marks == (1,)
    assert "not tested yet" in table.footnotes[0]
    assert rows["MHA"][5].lines == ("2 seeds",)
    assert [t.main for t in rows["MHA"]][6:8] == ["test", "71.00 ± 1.41"]
    assert table.caption.startswith("LADDER RUN")
    assert len(table.header) == 8 + 5


def test_seeds_of_one_row_are_scored_on_one_split():
    over, going = run("mha", accuracies=(0.8,), test=0.7), run("mha", 1, accuracies=(0.6,), stopped=None)
    assert relations.scored([over]).overall == [0.7]
    found = relations.scored([over, going])
    assert (found.split, found.overall, found.by_size[0][6]) == ("validation", [0.8, 0.6], 0.8)


def test_iha_has_its_colour_of_the_page_and_captions_say_what_is_drawn():
    shown = seen(config=SyntheticConfig())
    found = relation_figures.colours(shown)
    assert (found["iha"], found["mha"], len({found[m.name] for m in shown.config.models})) == ("#D55E00", "#000000", 9)
    assert list(captions(shown)) == ["figure3", "figure4", "figure5"]
    assert all("the paper's number" in text and "Dashed" in text for text in captions(shown).values())


def test_what_is_compared():
    names = {*relations.pairs(seen(config=SyntheticConfig()))}
    assert {("iha", "mha"), ("iha_p1", "mha"), ("iha", "simplicial"), ("iha", "mha_wide"), ("mha_wide", "mha")} <= names
    assert not any(first == "mha" or second.startswith("iha") for first, second in names)


def test_labels_name_the_pseudo_heads():
    names = [label(m) for m in SyntheticConfig().models]
    assert names == [
        "MHA", "IHA 8 × 8", "IHA 1 × 8", "2-simplicial", "IHA 1 × 1", "IHA 2 × 2", "IHA 4 × 4",
        "IHA 8 × 8, per-head collapse", "MHA at iha's FLOPs",
    ]  # fmt: skip


TINY = tiny(seeds=[0, 1])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return tmp_path


def contents(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_the_grid_runs_resumes_and_is_collected_into_a_stable_folder(folder):
    grid.main(["--config", "tiny.yaml", "--device", "cpu", "--models", "mha"])
    config = load_config(folder / "tiny.yaml")
    collect.collect(config, "tiny.yaml", folder / "out")
    assert len(list(csv.reader((folder / "out" / "relations_runs.csv").open()))) == 1 + 2
    grid.main(["--config", "tiny.yaml", "--device", "cpu"])
    collect.main(["--config", "tiny.yaml", "--into", "out"])
    first = contents(folder / "out")
    collect.main(["--config", "tiny.yaml", "--into", "out"])
    assert contents(folder / "out") == first
    assert {"README.md", "figure3.png", "figure3.pdf", "figure4.png", "relations.md"} <= first.keys()
    assert sum(name.startswith("manifests/binary/") for name in first) == 4 + 1
    readme = (folder / "out" / "README.md").read_text()
    for words in ("**inconclusive**", "4 of 4 runs of the grid were begun (epoch budget: 4)", "at equal epochs"):
        assert words in readme
    curves = list(csv.DictReader((folder / "out" / "relations_curves.csv").open()))
    assert len(curves) == 4 * 2
    assert {row["majority"] for row in curves} == {curves[0]["majority"]}
    assert {row["scale"] for row in curves} == {config.scale}
    part = config.synthetic
    said = f"an encoder of one layer, width {part.hidden_dim}, {part.n_heads} heads, batch {part.recipe.batch}; "
    assert said + f"{part.examples.train:,} examples to train on" in (folder / "out" / "relations.md").read_text()


def test_runs_take_turns_and_time_that_is_up_stops_the_grid(folder, caplog):
    caplog.set_level("INFO", "iha")
    grid.main(["--config", "tiny.yaml", "--device", "cpu"])
    turns = [r.getMessage().split()[1] for r in caplog.records if "validation" in r.getMessage()]
    assert set(turns[:2]) == {"mha", "iha"}, "each run has a turn before one has its second"
    (folder / "later.yaml").write_text(yaml.safe_dump({**TINY, "experiment": "later"}))
    grid.main(["--config", "later.yaml", "--device", "cpu", "--minutes", "0"])
    assert "time is up" in caplog.text
    assert not list((folder / "results" / "later").rglob("*seed*.json"))


def test_the_grid_can_be_shared_among_processes(folder):
    done = subprocess.run(
        [sys.executable, "-m", "iha.studies.relations.grid", "--config", "tiny.yaml", "--device", "cpu", "--jobs", "2"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((folder / "results" / "tiny" / "synthetic" / "binary").glob("*seed*.json"))) == 4


def test_wrong_uses_are_one_message(folder, capsys):
    with pytest.raises(SystemExit) as raised:
        grid.main(["--config", "tiny.yaml", "--models", "nobody"])
    assert raised.value.code == 2
    assert "--models: nobody; allowed: mha, iha" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        collect.main(["--config", "tiny.yaml"])
    assert "data.json: no such manifest" in capsys.readouterr().err
    (folder / "none.yaml").write_text("experiment: none\n")
    with pytest.raises(ConfigError, match="synthetic is null"):
        collect.collect(load_config(folder / "none.yaml"), "none.yaml", folder)
    (folder / "goal.yaml").write_text("goal: synthetic\n")
    with pytest.raises(ConfigError, match="synthetic is null with goal 'synthetic'"):
        load_config(folder / "goal.yaml")


def stage(module, part, output, folder, monkeypatch, *inputs):
    arguments = ["--slice", part.model_dump_json(), "--code", "c0de", "--output", str(output), "--state",
                 str(folder / "state"), "--experiment", "tiny", "--device", "cpu", "--inputs", *inputs]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["stage", *arguments])
    module.main()
    return read_manifest(output)


def test_the_stages_make_what_the_grid_makes(folder, monkeypatch):
    config = load_config(folder / "tiny.yaml").synthetic
    data = stage(synthetic_data, data_slice(config, "binary"), folder / "data.json", folder, monkeypatch)
    assert data.facts["splits"]["train"]["examples"] == 48
    part = train_slice(config, "binary", "iha", 1e-3, 1)
    made = stage(synthetic_train, part, folder / "run.json", folder, monkeypatch, f"data={folder / 'data.json'}")
    grid.main(["--config", "tiny.yaml", "--device", "cpu"])
    same = read_manifest(folder / "results" / "tiny" / "synthetic" / "binary" / "iha-lr0.001-seed1.json")
    assert same.files["weights"].sha256 == made.files["weights"].sha256
    assert outcome(same.facts).test == outcome(made.facts).test
    inputs = [f"synthetic_data:binary={folder / 'data.json'}", f"synthetic_run:binary/x={folder / 'run.json'}"]
    report = stage(
        synthetic_report, report_slice("smoke", config), folder / "report" / "report.json", folder, monkeypatch, *inputs
    )
    assert report.facts["verdicts"]["binary"]["verdict"] == "inconclusive"
    for name, digest in report.facts["files"].items():
        assert sha256_file(folder / "report" / name) == digest


def test_stages_of_data_and_report_start_without_torch():
    code = "import sys, iha.stages.synthetic_data, iha.stages.synthetic_report; sys.exit(str('torch' in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "False"


def test_the_budget_is_no_part_of_what_a_run_began_with():
    part = train_slice(CONFIG, "binary", "mha", 1e-3, 0)
    longer = CONFIG.model_copy(update={"budget": RelationBudget(epochs=3)})
    from iha.studies.relations.train import begun_with

    assert begun_with(part, {}) == begun_with(train_slice(longer, "binary", "mha", 1e-3, 0), {})
    assert json.dumps(begun_with(part, {})) != json.dumps(begun_with(part, {"train": "ab"}))


def test_the_benchmark_runs_small():
    script = Path(__file__).parents[2] / "benchmarks" / "synthetic.py"
    done = subprocess.run(
        [sys.executable, script, "--small", "--repeats", "1"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simplicial, N = 36: plain / chunked"] > 0
    assert found["ternary mha: CPU-s per epoch"] > 0
