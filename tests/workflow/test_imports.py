"""Imports go one way, along one list of packages."""

from __future__ import annotations

import grimp
import pytest

PLUGINS = ("snakemake_executor_plugin_submitit",)
#: A package imports from those before it only. `iha` itself is lazy: it imports what is asked of it.
ORDER = (
    "errors", "variants", "artifacts", "tracking", "config", "planning", "model", "data", "train", "evals", "report",
    "stages", "studies",
)  # fmt: skip
#: The level of the command line: above all packages; among themselves, only `cli` imports the others.
COMMANDS = ("doctor", "plan", "export", "cli")
#: All that the Snakefile imports starts in half a second, which it could not with these.
HEAVY = {"torch", "transformers", "datasets", "lm_eval", "mlflow"}
TORCH_FREE = ORDER[: ORDER.index("model")]


@pytest.fixture(scope="module")
def graph():
    """Who imports whom, imports inside functions included."""
    return grimp.build_graph("iha", *PLUGINS, include_external_packages=True, cache_dir=None)


def top(module: str) -> str:
    """The file or folder of `iha` that a module belongs to."""
    return module.split(".")[1]


def test_every_package_has_its_place(graph):
    assert {top(module) for module in graph.find_children("iha")} == {*ORDER, *COMMANDS}


def test_imports_go_one_way(graph):
    place = {name: i for i, name in enumerate((*ORDER, *COMMANDS))}
    wrong = [
        f"{module} imports {imported}"
        for module in graph.find_descendants("iha")
        for imported in graph.find_modules_directly_imported_by(module)
        if imported.startswith("iha.") and place.get(top(imported), 99) > place.get(top(module), 99)
    ]
    assert sorted(wrong) == []


def test_no_stage_imports_another(graph):
    for stage in graph.find_children("iha.stages") - {"iha.stages.common"}:
        imported = graph.find_modules_directly_imported_by(stage)
        assert {m for m in imported if m.startswith("iha.stages.")} <= {"iha.stages.common"}, stage


@pytest.mark.parametrize("name", TORCH_FREE)
def test_planning_reaches_no_heavy_package(graph, name):
    modules = {f"iha.{name}", *graph.find_descendants(f"iha.{name}")}
    reached = set().union(*(graph.find_upstream_modules(m) for m in modules))
    lazy = (
        {"mlflow"} if name in ("tracking", "config", "planning") else set()
    )  # inside functions, to write to the store
    assert not {m for m in reached if m.partition(".")[0] in HEAVY - lazy}


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_plugin_knows_nothing_of_this_project(graph, plugin):
    for module in {plugin, *graph.find_descendants(plugin)}:
        assert not {m for m in graph.find_upstream_modules(module) if m.partition(".")[0] == "iha"}, module
