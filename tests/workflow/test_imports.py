"""Imports go one way: from the command line and the stages down to configuration and manifests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import grimp
import pytest

SRC = Path(__file__).parents[2] / "src"
PLUGIN = "snakemake_executor_plugin_submitit"
#: From the top down; a module may import from lower lines only, and not from its own line.
LAYERS = (
    {"cli"},
    {"doctor", "preflight"},
    {"stages"},
    {"report"},
    {"plan"},
    {"synthetic", "separation"},
    {"evals", "train", "theory"},
    {"hub"},
    {"data", "modelfile", "tracking"},
    {"model", "context", "dag"},
    {"attention", "flops"},
    {"slices", "configcheck", "cache", "rope"},
    {"config"},
    {"configevals"},
    {"configdata", "configplan", "configsynthetic", "configseparation"},
    {"configbase", "locks", "provenance", "variants"},
    {"manifest", "yamlio", "tensors"},
    {"launch"},
    {"commands", "errors", "faults", "process", "progress", "text"},
)
#: What plans the workflow starts in half a second, which it could not with torch.
PLANNING = ("dag", "slices", "flops", "config", "configcheck", "variants", "manifest", "provenance", "context", "locks")
#: Started by hand with `python -m`: it stands with the command line, above what it calls.
STARTED = {"iha.studies.relations.collect"}
HEAVY = {"torch", "transformers", "datasets", "lm_eval", "mlflow"}


@pytest.fixture(scope="module")
def graph():
    """Who imports whom, imports inside functions included."""
    return grimp.build_graph("iha", PLUGIN, include_external_packages=True, cache_dir=None)


def top(module: str) -> str:
    """The file or folder of `iha` that a module belongs to."""
    if module in STARTED:
        return "cli"
    return module.split(".")[1] if module.startswith("iha.") else module


@pytest.fixture(scope="module")
def edges(graph):
    """Imports between the files and folders of `iha`, each with one module that has it."""
    found = defaultdict(dict)
    for module in graph.find_descendants("iha"):
        for imported in graph.find_modules_directly_imported_by(module):
            if imported.startswith("iha.") and top(imported) != top(module):
                found[top(module)][top(imported)] = f"{module} imports {imported}"
    return found


def test_the_layers_are_those_of_the_tree():
    names = [name for layer in LAYERS for name in layer]
    assert len(names) == len(set(names))
    for name in names:
        assert (SRC / "iha" / name / "__init__.py").exists() or (SRC / "iha" / f"{name}.py").exists(), name


def test_no_layer_imports_from_its_own_or_a_higher_one(edges):
    depth = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        text
        for name, imports in edges.items()
        for other, text in imports.items()
        if name in depth and other in depth and depth[other] <= depth[name]
    ]
    assert wrong == []


def test_no_two_folders_import_each_other_by_any_way(edges):
    """Also those that no layer names yet."""
    below = {name: set(imports) for name, imports in edges.items()}
    for name, direct in below.items():
        seen, queue = set(), list(direct)
        while queue:
            other = queue.pop()
            if other not in seen:
                seen.add(other)
                queue.extend(below.get(other, ()))
        assert name not in seen, f"{name} imports itself by way of {sorted(seen & direct)}"


def test_no_stage_imports_another(graph):
    for stage in graph.find_children("iha.stages") - {"iha.stages.common"}:
        imported = graph.find_modules_directly_imported_by(stage)
        assert {m for m in imported if m.startswith("iha.stages.")} <= {"iha.stages.common"}, stage


@pytest.mark.parametrize("name", PLANNING)
def test_planning_reaches_no_heavy_package(graph, name):
    modules = {f"iha.{name}", *graph.find_descendants(f"iha.{name}")}
    reached = set().union(*(graph.find_upstream_modules(m) for m in modules))
    assert not {m for m in reached if m.partition(".")[0] in HEAVY}


def test_the_executor_plugin_knows_nothing_of_this_project(graph):
    for module in {PLUGIN, *graph.find_descendants(PLUGIN)}:
        assert not {m for m in graph.find_upstream_modules(module) if m.partition(".")[0] == "iha"}, module


def test_the_command_line_starts_with_no_stage(graph):
    assert not {m for m in graph.find_modules_directly_imported_by("iha.cli") if m.startswith("iha.stages")}
