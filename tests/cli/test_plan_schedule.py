"""When jobs run and what they took: against enumeration, bounds from the literature, and hand-made benchmark files."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import iha.studies.price  # noqa: F401 (registers the prices of the studies)
from iha.artifacts.text import size
from iha.config.load import parse_config
from iha.plan import plan_text
from iha.planning.price import Job, critical_path, measured, plan, small, wall_seconds


@st.composite
def graphs(draw, gpus=0):
    """Jobs in an order in which parents come first; times are whole seconds, so that sums are exact."""
    made = []
    for i in range(draw(st.integers(1, 7))):
        after = tuple(name for name in (job.name for job in made) if draw(st.booleans()))
        on = draw(st.integers(0, gpus)) if gpus else 0
        made.append(Job(f"j{i}", "x", after, gpus=on, cores=draw(st.integers(1, 3)), seconds=float(draw(st.integers(1, 9)))))  # fmt: skip
    return made


def chains(jobs):
    """Every chain of jobs that wait for one another, by brute force."""
    by_name = {job.name: job for job in jobs}

    def back(name):
        yield (name,)
        for parent in by_name[name].after:
            yield from ((*chain, name) for chain in back(parent))

    return [chain for job in jobs for chain in back(job.name)]


@given(graphs())
@settings(max_examples=40, deadline=None)
def test_the_critical_path_is_the_longest_of_all_chains(jobs):
    seconds = {job.name: job.seconds for job in jobs}
    longest = max(sum(seconds[name] for name in chain) for chain in chains(jobs))
    found, path = critical_path(jobs)
    assert found == longest == sum(seconds[name] for name in path)
    assert tuple(path) in chains(jobs)


@given(graphs(gpus=3))
@settings(max_examples=40, deadline=None)
def test_with_machines_for_all_the_wall_time_is_the_critical_path(jobs):
    assert wall_seconds(jobs, 100, 100) == critical_path(jobs)[0]


@given(graphs(gpus=3))
@settings(max_examples=40, deadline=None)
def test_on_one_core_and_one_gpu_nothing_of_a_kind_runs_at_once(jobs):
    wall = wall_seconds(jobs, 1, 1)
    kinds = [sum(j.seconds for j in jobs if bool(j.gpus) == gpu) for gpu in (True, False)]
    assert max(*kinds, critical_path(jobs)[0]) <= wall <= sum(kinds)


@given(graphs(), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_the_wall_time_keeps_grahams_bound(jobs, cores):
    """List scheduling of one-core jobs: at most work / m + (1 - 1/m) x critical path (Graham 1966)."""
    alone = [Job(j.name, j.rule, j.after, cores=1, seconds=j.seconds) for j in jobs]
    work, chain = sum(j.seconds for j in jobs), critical_path(jobs)[0]
    assert wall_seconds(alone, 0, cores) <= work / cores + (1 - 1 / cores) * chain + 1e-9


def test_a_job_larger_than_the_machine_gets_all_of_it():
    big = [Job("a", "x", gpus=8, seconds=3.0), Job("b", "x", gpus=1, seconds=2.0), Job("c", "x", cores=99, seconds=4.0)]
    assert wall_seconds(big, 2, 2) == 5.0


def test_the_longest_way_to_go_is_started_first_whatever_the_order_of_the_list():
    jobs = [Job("short", "x", seconds=1.0), Job("head", "x", seconds=1.0), Job("tail", "x", ("head",), seconds=9.0)]
    for some in itertools.permutations(jobs):
        if [j.name for j in some].index("head") < [j.name for j in some].index("tail"):
            assert wall_seconds([*some], 0, 1) == 11.0
            assert wall_seconds([*some], 0, 2) == 10.0


# ---- measured --------------------------------------------------------------------------------------------------------

HEAD = "s\th:m:s\tmax_rss\tmax_vms\n"


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results" / "e" / "benchmarks").mkdir(parents=True)
    return parse_config({"experiment": "e"})


@pytest.mark.parametrize(
    ("text", "seconds", "memory"),
    [
        (f"{HEAD}12.5\t0:00:12\t100.0\t1\n", 12.5, 100 * 2**20),
        (f"{HEAD}1.0\tx\t7.0\t1\n2.0\tx\t9.0\t1\n", 2.0, 9 * 2**20),
        (f"{HEAD}0.1\t0:00:00\t-\t-\n", 0.1, 0.0),
        (f"{HEAD}NA\tNA\tNA\tNA\n", 0.0, 0.0),
        ("s\n3\n", 3.0, 0.0),
        (f"{HEAD}12.5\t0:00:12\t100.0\t1".replace("\n", "\r\n"), 12.5, 100 * 2**20),
    ],
)
def test_a_benchmark_file_is_read_as_snakemake_writes_it(config, tmp_path, text, seconds, memory):
    (tmp_path / "results/e/benchmarks/a.tsv").write_text(text)
    found = measured(config, [Job("a", "x"), Job("b", "x")])
    assert list(found) == ["a"]
    assert (found["a"].seconds, found["a"].memory, found["a"].checkpoint_bytes) == (seconds, memory, 0.0)


@pytest.mark.parametrize("text", ["", HEAD, "\n"])
def test_a_benchmark_file_without_a_row_is_a_job_that_has_not_ended(config, tmp_path, text):
    (tmp_path / "results/e/benchmarks/a.tsv").write_text(text)
    assert measured(config, [Job("a", "x")]) == {}


def test_bytes_of_checkpoints_are_those_of_files_and_not_of_links(config, tmp_path):
    (tmp_path / "results/e/benchmarks/a.tsv").write_text(f"{HEAD}1\tx\t1\t1\n")
    run = tmp_path / "state/e/runs/a"
    (run / "checkpoints" / "step_1").mkdir(parents=True)
    (run / "checkpoints" / "step_1" / "x").write_bytes(b"1" * 70)
    (run / "checkpoints" / "latest").symlink_to("step_1")
    (run / "final").mkdir()
    (run / "final" / "model").write_bytes(b"1" * 5)
    (run / "metrics.jsonl").write_bytes(b"1" * 999)
    (job,) = measured(config, [Job("a", "x", state="runs/a")]).values()
    assert job.checkpoint_bytes == 75


# ---- what is shown ---------------------------------------------------------------------------------------------------


def test_hours_of_gpus_and_of_cores_are_never_both():
    assert (Job("a", "x", gpus=4, cores=8, seconds=1800).gpu_hours, Job("a", "x", gpus=4, cores=8).cpu_hours) == (2, 0)
    assert (Job("a", "x", cores=8, seconds=1800).gpu_hours, Job("a", "x", cores=8, seconds=1800).cpu_hours) == (0, 4)


def test_a_small_job_takes_its_start_and_its_tokens_over_its_workers():
    config = parse_config({"plan": {"small_seconds": 10, "core_tokens_per_second": 100}, "runtime": {"workers": 4}})
    assert small(config, "x").seconds == 10 and small(config, "x").cores == 1
    assert small(config, "x", tokens=800).seconds == 10 + 800 / 100 / 4
    assert small(config, "x", tokens=800, cores=1).seconds == 18
    assert (small(config, "rule").name, small(config, "rule", "name").name) == ("rule", "name")


def row(**changes):
    base = dict.fromkeys(("gpu_hours", "cpu_hours", "longest_job_hours", "memory_bytes_per_rank", "checkpoint_bytes",
                          "log_bytes", "data_bytes", "energy_kwh", "cost"), 0.0)  # fmt: skip
    return {"jobs": 1, **base, **changes}


def shown(**changes):
    made = {"rules": {"x": row(**changes)}, "total": {**row(**changes), "wall_hours": 1.0}, "currency": "EUR",
            "device": "H200", "critical_path": {"hours": 2.0, "jobs": ["a", "b"]}, "trainings": {}}  # fmt: skip
    return plan_text(made, 80.0)


def test_columns_that_are_zero_everywhere_are_left_out_and_small_amounts_have_small_units():
    head = shown(cpu_hours=0.1, energy_kwh=0.002).splitlines()[0]
    assert "core-minutes" in head and "GPU-hours" not in head
    assert "core-hours" in shown(cpu_hours=12_345.6).splitlines()[0] and "12,345.6" in shown(cpu_hours=12_345.6)
    assert "Energy 2 Wh" in shown(energy_kwh=0.002) and "Energy 123 kWh" in shown(energy_kwh=123.4)


def test_a_plan_warns_of_gpu_memory_only_where_a_gpu_is_used():
    big = {"memory_bytes_per_rank": 81e9}
    assert "warning: x needs more than the 80 GB of memory of one GPU" in shown(gpu_hours=1.0, **big)
    assert "warning" not in shown(gpu_hours=0.0, **big)
    assert "warning" not in shown(gpu_hours=1.0, memory_bytes_per_rank=80e9)
    text = shown()
    assert "Critical path, 2.0 h: a > b" in text and " EUR." in text and "tokens/s" not in text


def test_the_plan_of_a_run_on_cores_alone_bills_cores_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = plan(parse_config({"goal": "separation", "separation": {"cpu_seconds": 240}, "plan": {"total_gpus": 0}}))
    total = made["total"]
    assert (total["jobs"], total["gpu_hours"]) == (1, 0)
    assert total["cpu_hours"] == pytest.approx(0.1)  # 240 s and 120 s to start
    assert total["cost"] == pytest.approx(0.003) and total["energy_kwh"] == pytest.approx(0.0008)
    assert total["wall_hours"] == made["critical_path"]["hours"] == total["longest_job_hours"]
    assert made["critical_path"]["jobs"] == ["separation"] and made["trainings"] == {}
    assert size(total["memory_bytes_per_rank"]) == "400 MB"
