"""Keys by which a restarted workflow knows its jobs, what a job requests, and Slurm's commands with their answers."""

import os
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slurmlab import job
from snakemake_interface_common.exceptions import WorkflowError

from snakemake_executor_plugin_submitit import ExecutorSettings
from snakemake_executor_plugin_submitit.request import JobKey, key_of, lead, parse_extra, read_request, sbatch_options

HEX = st.text("0123456789abcdef", min_size=12, max_size=12)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("1")
    return tmp_path


def made(variant="iha", rule=None, **changes):
    """A job with files and parameters."""
    found = job(mem_mb=100)
    found.wildcards_dict = {"v": variant, "seed": "1"}
    found.rule.__dict__.update(rule or {})
    fields = {"output": [f"{variant}.out", f"{variant}.log"], "input": ["in.txt"], "params": {"lr": 1, "steps": 2}}
    found.__dict__.update({**fields, **changes})
    return found


def group(*jobs):
    return types.SimpleNamespace(jobs=jobs, is_group=lambda: True, threads=1, resources={}, groupid="g")


def differs(one, two):
    """Which parts of two keys differ."""
    return {name for name in ("what", "how", "needs") if getattr(one, name) != getattr(two, name)}


CHANGES = {
    "output": ({"output": ["other.out"]}, {"what"}),
    "order of outputs": ({"output": ["iha.log", "iha.out"]}, set()),
    "parameter": ({"params": {"lr": 2, "steps": 2}}, {"how"}),
    "order of parameters": ({"params": {"steps": 2, "lr": 1}}, set()),
    "another input": ({"input": ["in.txt", "none.txt"]}, {"how"}),
    "threads": ({"threads": 5}, {"needs"}),
    "memory": ({"resources": {"mem_mb": 200}}, {"needs"}),
    "temporary folder": ({"resources": {"mem_mb": 100, "tmpdir": "/tmp/x", "_nodes": 1}}, set()),
    "command": ({"rule": {"shellcmd": "y"}}, {"how"}),
    "script instead": ({"rule": {"shellcmd": None, "script": "a.py"}}, {"how"}),
    "run block": ({"rule": {"shellcmd": None, "run_func_src": "print(1)"}}, {"how"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_part_of_a_key_changes_with_what_it_covers(folder, change):
    fields, parts = CHANGES[change]
    assert differs(key_of(made()), key_of(made(**fields))) == parts


def test_an_input_counts_with_size_and_time_unless_it_is_ancient(folder):
    first = key_of(made())
    os.utime("in.txt", (1, 1))
    touched = key_of(made())
    Path("in.txt").write_text("12")
    os.utime("in.txt", (1, 1))
    assert differs(first, touched) == {"how"} == differs(touched, key_of(made()))

    class Ancient(str):
        flags = {"ancient": True}  # noqa: RUF012

    old = key_of(made(input=[Ancient("in.txt")]))
    os.utime("in.txt", (2, 2))
    assert old == key_of(made(input=[Ancient("in.txt")]))


def test_files_that_appear_in_a_folder_do_not_make_its_jobs_new(folder):
    (folder / "data").mkdir()
    os.utime("data", (1, 1))
    before = key_of(made(input=["data"]))
    (folder / "data" / "shard").write_text("x" * 5000)
    os.utime("data", (1, 1))
    assert key_of(made(input=["data"])) == before


def test_the_same_names_in_another_folder_are_other_files(folder, monkeypatch):
    first = key_of(made())
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert key_of(made()).what != first.what


def test_a_job_without_outputs_is_known_by_its_rule_and_wildcards(folder):
    keys = {key_of(made(variant, output=[])).what for variant in ("iha", "diff", "iha")}
    assert len(keys) == 2


def test_the_jobs_of_a_group_are_a_set_whatever_its_order(folder):
    """Snakemake keeps them in a frozenset, which is in another order in each process."""
    a, b, c = made("a"), made("b"), made("c")
    assert key_of(group(a, b, c)) == key_of(group(c, a, b)) == key_of(group(b, c, a))
    assert key_of(group(a, b)) != key_of(group(a, c))


def test_what_a_group_makes_for_itself_does_not_make_it_another_group(folder):
    """A group that runs has written its first files when the workflow starts again."""
    first, second = made("a", output=["a.out"]), made("b", input=["a.out", "in.txt"])
    before = key_of(group(first, second))
    (folder / "a.out").write_text("made meanwhile")
    assert key_of(group(first, second)) == before
    os.utime("in.txt", (1, 1))
    assert differs(key_of(group(first, second)), before) == {"how"}


@given(HEX, HEX, HEX, st.text("abc |-_.smk0", max_size=20), st.text("abc |-_.smk0", max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_key_is_found_in_any_text_around_it(what, how, needs, before, after):
    key = JobKey(what, how, needs[:8])
    assert JobKey.find(f"{before}|{key}|{after}") == key
    assert JobKey.find(str(key)[:-1]) is None


# ---- requests --------------------------------------------------------------------------------------------------------


KEY = "smk-0123456789ab-0123456789ab-01234567"


def options(settings=None, **resources):
    own = settings or ExecutorSettings()
    return sbatch_options(read_request(job(**resources), own), KEY, own)


def test_resources_become_sbatch_options():
    found = options(mem_mb=1500, runtime=120, nodes=2, tasks_per_node=4, gpus_per_node=4, gpu_model="h200")
    assert found == {
        "nodes": 2, "ntasks-per-node": 4, "cpus-per-task": 4, "mem": "1500M", "time": 120,
        "gpus-per-node": "h200:4", "signal": "B:USR2@120", "requeue": True, "comment": KEY,
    }  # fmt: skip


def test_site_settings_survive_default_resources_of_the_command_line():
    own = ExecutorSettings(partition="gpu", account="lab", qos="long", extra="--mail-type=FAIL --exclusive")
    found = options(own, slurm_partition="big", slurm_extra="--exclude=n3 --mail-type=END")
    assert (found["partition"], found["account"], found["qos"]) == ("big", "lab", "long")
    assert (found["exclude"], found["mail-type"], found["exclusive"]) == ("n3", "END", True)


def test_requeue_can_be_switched_off():
    found = options(ExecutorSettings(requeue=0))
    assert found["no-requeue"] is True and "requeue" not in found


@given(st.integers(0, 10**5), st.integers(1, 10**4))
@settings(max_examples=100, deadline=None)
def test_a_job_saves_within_the_last_quarter_of_its_time(minutes, wanted):
    found = lead(minutes, wanted)
    assert 1 <= found <= wanted
    assert not minutes or 4 * found <= 60 * minutes
    assert found == wanted or 4 * (found + 1) > 60 * minutes, "earlier than it need be"


@pytest.mark.parametrize(
    ("resources", "options", "absent"),
    [
        ({"mem_mb": 0}, {}, {"mem"}),
        ({"mem_mb": 500, "slurm_extra": "--mem-per-cpu=2G"}, {"mem-per-cpu": "2G"}, {"mem"}),
        ({"mem_mb": 500, "slurm_extra": "--mem=0"}, {"mem": "0"}, set()),
        ({"runtime": 0}, {"signal": "B:USR2@120"}, {"time"}),
        ({"gpu": 2}, {"gpus-per-node": 2}, set()),
        ({"gpu": 2, "gpus_per_node": 4}, {"gpus-per-node": 4}, set()),
        ({"gpu_model": "h200"}, {}, {"gpus-per-node"}),
        ({"nodes": 0, "tasks_per_node": 0}, {"nodes": 1, "ntasks-per-node": 1}, set()),
        ({"slurm_gres": "gpu:h100:2", "slurm_nodelist": "n1"}, {"gres": "gpu:h100:2", "nodelist": "n1"}, {"exclude"}),
        ({"slurm_partition": ""}, {"partition": "main"}, {"account", "qos"}),
        ({"slurm_extra": "--comment-like=a --exclusive --constraint='a&b c'"}, {"exclusive": True, "constraint": "a&b c"}, set()),
    ],
)  # fmt: skip
def test_odd_but_legal_resources(resources, options, absent):
    own = ExecutorSettings(partition="main")
    found = sbatch_options(read_request(job(**resources), own), "k", own)
    assert {name: found[name] for name in options} == options
    assert not absent & found.keys()


def test_a_key_that_travels_in_the_name_leaves_the_comment_to_the_site():
    own = ExecutorSettings(key="name", extra="--mail-type=END")
    assert "comment" not in sbatch_options(read_request(job(), own), "k", own)


@pytest.mark.parametrize("value", ["two", None, -1, "-3", "1.5", ""])
def test_a_resource_that_is_not_a_whole_number_is_named(value):
    with pytest.raises(WorkflowError, match=f"rule train: resource mem_mb: {value!r}; allowed: whole numbers from 0"):
        read_request(job(mem_mb=value), ExecutorSettings())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--mail-user='x", "No closing quotation; allowed: long sbatch options, --name=value or --name."),
        ("exclusive", "'exclusive'; allowed: long sbatch options"),
        ("--", "'--'; allowed: long sbatch options"),
        ("--=x", "'--=x'; allowed: long sbatch options"),
        ("--mem=1 -n 2", "'-n'; allowed: long sbatch options"),
        ("--time=5", "--time is set by the executor itself"),
        ("--requeue", "--requeue is set by the executor itself"),
    ],
)
def test_extra_options_that_are_refused_name_their_source(text, words):
    with pytest.raises(WorkflowError) as caught:
        read_request(job(slurm_extra=text), ExecutorSettings())
    assert str(caught.value).startswith("resource slurm_extra of train: ") and words in str(caught.value)
    with pytest.raises(WorkflowError, match=r"^--submitit-extra: "):
        read_request(job(), ExecutorSettings(extra=text))


def test_extra_options_may_be_empty_or_hold_equals_signs():
    assert parse_extra("", "x") == {}
    assert parse_extra("--export=A=1,B=2 --exclusive", "x") == {"export": "A=1,B=2", "exclusive": True}


def test_names_in_the_queue_are_readable_short_and_plain():
    long = job()
    long.wildcards_dict = {"b": "ä/x y", "a": "1" * 100}
    name = read_request(long, ExecutorSettings()).name
    assert name == f"train.{'1' * 100}"[:60]
    long.wildcards_dict = {"b": "ä/x y", "a": "1"}
    assert read_request(long, ExecutorSettings()).name == "train.1.__x_y"
