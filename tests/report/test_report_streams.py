"""The report refuses variants that were trained on different data."""

from __future__ import annotations

import pytest
from reports import whole

from iha.errors import DataError
from iha.report.streams import check


def test_equal_streams_are_counted(tmp_path):
    said = check(whole(tmp_path, seeds=(1, 2)).results)
    assert "at 48 of 48 milestones" in said, "4 variants, 2 seeds, 3 stages, 2 milestones"


def test_more_steps_of_the_same_stream_are_the_same_stream(tmp_path):
    world = whole(tmp_path)
    world.train("iha", 1, "pretrain", digests={"2": "aa", "4": "bb", "6": "cc"})
    check(world.results)


def test_another_stream_fails_and_is_named(tmp_path):
    world = whole(tmp_path)
    world.train("diff", 1, "sft", digests={"2": "aa", "4": "xx"})
    with pytest.raises(DataError, match=r"runs/diff/seed1/sft\.json differs from global's by step 4"):
        check(world.results)


def test_runs_without_a_common_milestone_are_said_to_be_unchecked(tmp_path):
    world = whole(tmp_path)
    world.train("iha", 1, "extend", digests={"3": "zz"})
    assert "no milestone in common: IHA seed 1 extend" in check(world.results)


def test_an_absent_run_is_no_difference(tmp_path):
    world = whole(tmp_path)
    del world.inputs["train:iha:1:sft"]
    check(world.results)
