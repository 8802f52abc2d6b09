"""A private Slurm with a real accounting database, where slurmdbd and MariaDB are installed; CI has none."""

import os
import shutil

import pytest
from slurmlab import Cluster, missing, wait_for

from iha import doctor
from snakemake_executor_plugin_submitit import slurm

PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "sacctmgr")
absent = missing() or ", ".join(n for n in PROGRAMS if not shutil.which(n, path=os.environ["PATH"] + ":/usr/sbin"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(bool(absent), reason=f"not installed: {absent}"),
]


def test_accounting_knows_the_end_of_jobs_that_the_controller_has_forgotten(monkeypatch):
    recorded = Cluster("--accounting", "1")
    try:
        for name, value in recorded.env.items():
            monkeypatch.setenv(name, value)
        submit = ["sbatch", "--parsable", "-o", "/dev/null", "--wrap"]
        failed, cancelled, done = (recorded(*submit, what).strip() for what in ("exit 3", "sleep 100", "true"))
        wait_for(lambda: recorded.jobs().get(cancelled) == "RUNNING", what="the job to run")
        recorded("scancel", cancelled)
        for job in (failed, cancelled, done):
            wait_for(lambda job=job: not slurm.output(["scontrol", "show", "job", job]), 60, "the controller to forget")
        wait_for(lambda: slurm.post_mortem(cancelled).state == "CANCELLED", 30, "the record")
        assert slurm.post_mortem(failed).state == "FAILED"
        assert slurm.post_mortem(done).state == "COMPLETED"
        assert slurm.post_mortem(failed).node in ("n1", "n2")
        assert slurm.post_mortem("99999").state == "GONE"
        assert {o.name: o.status for o in doctor.slurm_commands(True)}["accounting"] == "ok"
    finally:
        recorded.close()
