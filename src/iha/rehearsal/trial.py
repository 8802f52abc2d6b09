"""One fault on a fresh copy of the small experiment, and the checks that every fault has in common."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Any

from iha.artifacts.manifest import verify_files
from iha.planning.slices import SPLITS
from iha.rehearsal.lab import Job, Lab
from iha.rehearsal.process import Child


class Unmet(Exception):
    """What should have held and did not."""


class Skipped(Exception):
    """Why a fault cannot be rehearsed on this machine."""


def expect(holds: object, otherwise: str) -> None:
    """Raise Unmet with `otherwise` unless it holds."""
    if not holds:
        raise Unmet(otherwise)


def untimed(value: Any) -> Any:
    """Without the CPU-seconds that relation runs measure."""
    if isinstance(value, dict):
        return {key: untimed(part) for key, part in value.items() if key != "cpu_s"}
    return [untimed(part) for part in value] if isinstance(value, list) else value


@dataclass
class Trial:
    """A copy in which `job` has not run yet, beside the experiment that nothing disturbed."""

    lab: Lab
    undisturbed: Lab
    job: Job
    jobs: dict[str, Job]

    def killed(self, fault: str, **env: str) -> None:
        """Start the job and see it killed at `fault`, nothing claiming that it had ended."""
        code, text = self.lab.run(self.job, IHA_FAULT=f"{fault}:kill", **env)
        expect(code == -signal.SIGKILL, f"{fault} was never passed: exit {code}\n{text}")
        self.unclaimed()

    def unclaimed(self) -> None:
        """No manifest stands under its final name."""
        expect(not self.lab.output(self.job).exists(), "a manifest claims completion")

    def held(self, fault: str) -> Child:
        """Start the job and wait until it stands still at `fault`; `release` lets it go on."""
        gate = self.lab.root.with_name(f"{self.lab.root.name}-gate")
        child = self.lab.start(self.job, IHA_FAULT=f"{fault}:wait={gate}")
        child.wait_for(gate.with_name(f"{gate.name}.reached").exists)
        return child

    def release(self) -> None:
        """Let a held job go on."""
        self.lab.root.with_name(f"{self.lab.root.name}-gate").touch()

    def finished(self, after: int | None = None, **env: str) -> str:
        """The same command ends the job, from the newest whole checkpoint if there is one; says from where.

        `after`: the step that this must be.
        """
        newest = self.lab.newest(self.job) if self.job.stage in SPLITS else None
        expect(after is None or after == newest, f"the newest whole checkpoint is {newest}, not {after}")
        code, text = self.lab.run(self.job, **env)
        expect(code == 0, f"the same command ended with {code}\n{text}")
        return self.resumed(text, newest)

    def resumed(self, text: str, newest: int | None) -> str:
        """Check where a start says that it went on."""
        found = re.search(r"resumed after step (\d+) of (\d+)", text)
        at = int(found[1]) if found else None
        expect(at == newest, f"went on after step {at}, though the newest whole checkpoint was {newest}")
        if found:
            return f"went on after step {at} of {found[2]}"
        shards = re.search(r"going on after (\d+) shards", text)
        if shards:
            return f"went on after shard {shards[1]}"
        return "ended by the same command" if self.lab.checkpoints(self.job).exists() else "started anew"

    def same(self) -> None:
        """Manifest (and with it every weight and digest) and losses are those of the undisturbed run."""
        ours, theirs = (lab.made(self.job) for lab in (self.lab, self.undisturbed))
        expect(
            untimed(ours.model_dump()) == untimed(theirs.model_dump()), "the manifest differs from the undisturbed one"
        )
        verify_files(ours, self.lab.state, deep=True)
        if self.job.stage in SPLITS:
            ours_l, theirs_l = (lab.losses(self.job) for lab in (self.lab, self.undisturbed))
            expect(ours_l == theirs_l, "the losses differ from the undisturbed ones")

    def refused(self, *words: str) -> str:
        """The same command ends with one message that holds `words`; returns it."""
        code, text = self.lab.run(self.job)
        expect(code == 2 and "Traceback" not in text, f"not refused with a message: exit {code}\n{text}")
        lines = text.strip().splitlines()
        expect(all(word in lines[-1] for word in words), f"the message lacks {words}: {lines[-1]}")
        self.unclaimed()
        return lines[-1]
