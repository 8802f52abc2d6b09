"""The system calls a sandboxed program is refused: new namespaces, mounts, other processes' memory, hidden memory.

A second barrier behind namespaces and limits: what it refuses either reaches kernel code no solution needs or takes
memory that no resource limit counts (System V shared memory, memfd). Classic BPF, as `bwrap --seccomp` reads it.
Numbers: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h (AArch64).
"""

from __future__ import annotations

import platform
import struct

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _KILL = 0x7FFF0000, 0x80000000
_EPERM, _ENOSYS = 0x00050001, 0x00050026
_X32 = 0x40000000
#: CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
_NAMESPACES = 0x7E020080

_COMMON = {"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
           "mount_setattr": 442, "memfd_secret": 447, "io_uring_setup": 425, "clone3": 435,
           "pidfd_getfd": 438}  # fmt: skip
_X86 = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155, "ptrace": 101,
        "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "keyctl": 250, "add_key": 248, "request_key": 249, "kexec_load": 246, "kexec_file_load": 320,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "open_by_handle_at": 304, "memfd_create": 319,
        "shmget": 29, "msgget": 68, "semget": 64, "clone": 56}  # fmt: skip
_ARM = {"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "ptrace": 117,
        "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "keyctl": 219, "add_key": 217, "request_key": 218, "kexec_load": 104, "kexec_file_load": 294,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "open_by_handle_at": 265, "memfd_create": 279,
        "shmget": 194, "msgget": 186, "semget": 190, "clone": 220}  # fmt: skip
_MACHINES = {"x86_64": (0xC000003E, _X86 | _COMMON), "aarch64": (0xC00000B7, _ARM | _COMMON)}


def program(machine: str | None = None) -> bytes | None:
    """The filter for `machine` (default: this one), or None for a machine whose call numbers are not listed here."""
    name = machine or platform.machine()
    if name not in _MACHINES:
        return None
    arch, calls = _MACHINES[name]
    code = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    if name == "x86_64":
        code += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ENOSYS)]
    for call, number in calls.items():
        if call == "clone":
            continue
        # clone3 hides its flags behind a pointer; libc falls back to clone when it is absent
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ENOSYS if call == "clone3" else _EPERM)]
    code += [(_EQUAL, 0, 3, calls["clone"]), (_LOAD, 0, 0, _FIRST_ARGUMENT)]
    code += [(_ANY_BIT, 0, 1, _NAMESPACES), (_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("=HBBI", *step) for step in code)
