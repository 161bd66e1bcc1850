"""Runs a command and measures how much CPU time other processes used in the same time."""
import ctypes
import dataclasses
import os
import resource
import signal
import subprocess
import time

MAX_OTHERS_SHARE = 0.05  # of all CPUs' time; a run with more is discarded
PR_SET_CHILD_SUBREAPER = 36


@dataclasses.dataclass(frozen=True)
class CpuTimes:
    """Seconds of all CPUs together, since some time in the past."""
    wall_s: float
    busy_s: float  # of all processes
    own_s: float  # of this process and its ended descendants


@dataclasses.dataclass(frozen=True)
class Run:
    output: str
    errors: str
    returncode: int
    wall_s: float
    others_share: float  # other processes' share of the CPU time, 0 to 1


def busy_seconds(stat: str, ticks_per_s: int) -> float:
    """Busy seconds from /proc/stat's first line: processes and time stolen by a hypervisor, without interrupts."""
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = (int(field) for field in stat.split()[1:9])
    return (user + nice + system + steal) / ticks_per_s


def read_times() -> CpuTimes:
    with open("/proc/stat", encoding="ascii") as file:
        busy_s = busy_seconds(file.readline(), os.sysconf("SC_CLK_TCK"))
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return CpuTimes(time.monotonic(), busy_s, sum(usage.ru_utime + usage.ru_stime for usage in usages))


def others_share(before: CpuTimes, after: CpuTimes, num_cores: int) -> float:
    """CPU time that other processes used between two times, as a share of all CPUs."""
    others_s = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others_s) / max(1e-9, (after.wall_s - before.wall_s) * num_cores)


def adopt_orphans() -> None:
    """Makes descendants whose parent ends children of this process, so that their time counts as ours."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def reap_orphans(deadline_s: float = 10) -> None:
    """Waits for descendants that outlived the command; after the deadline they are killed."""
    end = time.monotonic() + deadline_s
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid != 0:
            continue
        if time.monotonic() > end:
            for orphan in children():
                os.kill(orphan, signal.SIGKILL)
        time.sleep(0.01)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(pid) for pid in file.read().split()]


def share_of_others_now(seconds: float = 2.0) -> float:
    before = read_times()
    time.sleep(seconds)
    return others_share(before, read_times(), os.cpu_count() or 1)


def run(command: list[str], environment: dict[str, str], timeout_s: float) -> Run:
    """Runs the command to its end and ends its descendants. On timeout the return code is -9."""
    before = read_times()
    process = subprocess.Popen(command, env={**os.environ, **environment}, text=True, start_new_session=True,
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        output, errors = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, errors = process.communicate()
        errors += f"\nstopped after {timeout_s:.0f} s; give a longer --timeout"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    reap_orphans()
    after = read_times()
    return Run(output, errors, process.returncode, after.wall_s - before.wall_s,
               others_share(before, after, os.cpu_count() or 1))
