"""The first lines of a Slurm job: run what submitit pickled, and leave the result where submitit looks for it.

What `submitit.core._submit` does, without the import of all of submitit, numpy and the list of installed packages
(0.2 CPU seconds of the job's 1.8). Travels in the submission file as text: a queued job starts as it was submitted.
"""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path


def run_pickled(folder: str) -> None:
    """Run the job of this Slurm job id, pickled in `folder`; imports nothing but submitit's files' names and format."""
    import importlib.util
    import os
    import sys
    import time
    import traceback

    spec = importlib.util.find_spec("submitit")
    assert spec is not None
    sys.modules["submitit"] = importlib.util.module_from_spec(spec)  # a package to import from, not executed itself
    from submitit.core import utils

    paths = utils.JobPaths(folder, os.environ["SLURM_JOB_ID"])
    for _ in range(60):  # a slow file system, or a job that started before sbatch had returned
        if paths.submitted_pickle.exists():
            break
        time.sleep(1)
    try:
        outcome = "success", utils.DelayedSubmission.load(paths.submitted_pickle).result()
    except Exception:
        outcome = "error", traceback.format_exc()
    with utils.temporary_save_path(paths.result_pickle) as new:
        utils.cloudpickle_dump(outcome, new)
    if outcome[0] == "error":
        sys.exit(outcome[1])


def command(python: str, folder: Path) -> str:
    """Shell command of a job. exec: the batch process itself is Python, and gets the signals of the batch process."""
    text = f"{inspect.getsource(run_pickled)}\n\nrun_pickled({str(folder)!r})\n"
    return f"exec {shlex.quote(python)} -u -c {shlex.quote(text)}"
