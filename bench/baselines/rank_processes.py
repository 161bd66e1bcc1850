"""Starts a script again as the ranks of a group: processes on this host, each bound to its own cores."""
import os
import socket
import subprocess
import sys


def rank():
    """This process's rank, or None in the process that starts the ranks."""
    return int(os.environ["RANK"]) if "RANK" in os.environ else None


def start(num_ranks, threads, bind=True):
    """Runs this script's command line once per rank, with `threads` threads each; returns an exit code or an error."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    cores = sorted(os.sched_getaffinity(0))
    processes = []
    for number in range(num_ranks):
        environment = dict(os.environ, RANK=str(number), LOCAL_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS=str(threads))
        processes.append(subprocess.Popen([sys.executable, *sys.argv], env=environment))
        own = cores[number * threads:(number + 1) * threads]
        if bind and own:
            os.sched_setaffinity(processes[-1].pid, own)
    failed = [number for number, process in enumerate(processes) if process.wait() != 0]
    return f"ranks {failed} failed; their errors are above" if failed else 0


def leave():
    """Ends a rank without cleanup: Gloo's threads may outlive their group and would abort the process."""
    sys.stdout.flush()
    os._exit(0)
