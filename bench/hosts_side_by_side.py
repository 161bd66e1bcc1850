#!/usr/bin/env python3
"""Times all-reduces between two hosts: Cleave over TCP, Open MPI over TCP, c10d's Gloo. Prints a table in Markdown.

usage: bench/hosts_side_by_side.py [--build build/release] [--gbit 1,10] [--bytes LIST] [--seconds S]

The hosts are two network namespaces of this machine, joined by a pair of virtual Ethernet devices that `tc tbf` limits to the
given rates; one rank on one core in each. Needs root, iproute2, mpirun.openmpi and mpicxx.openmpi; Gloo needs CLEAVE_PYTHON,
a Python with torch. What is missing is left out by name. Each engine has one run for each rate; a time is the median on rank 0.
"""
import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZES = "1024,16384,262144,4194304,67108864"
ADDRESSES = ("10.78.0.1", "10.78.0.2")
PORT = "29571"


def namespace(host):
    return f"cleave-bench-{os.getpid()}-{host}"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


class Hosts:
    """Two namespaces and the cable between them."""

    def __enter__(self):
        for host in range(2):
            ip("netns", "add", namespace(host))
        ip("link", "add", "cable0", "netns", namespace(0), "type", "veth", "peer", "name", "cable1", "netns", namespace(1))
        for host, address in enumerate(ADDRESSES):
            ip("-n", namespace(host), "addr", "add", f"{address}/24", "dev", f"cable{host}")
            for device in ("lo", f"cable{host}"):
                ip("-n", namespace(host), "link", "set", device, "up")
        return self

    def __exit__(self, *_):
        for host in range(2):
            subprocess.run(["ip", "netns", "del", namespace(host)], stderr=subprocess.DEVNULL, check=False)

    @staticmethod
    def limit(gbit):
        """tbf's bucket holds what passes in 4 ms, the longest tick of a kernel's timer; its queue 50 ms more."""
        burst = int(gbit * 1e9 / 8 * 0.004)
        for host in range(2):
            ip("netns", "exec", namespace(host), "tc", "qdisc", "replace", "dev", f"cable{host}", "root", "tbf",
               "rate", f"{gbit}gbit", "burst", str(burst), "latency", "50ms")


def missing_for_hosts():
    """What this machine lacks for the namespaces; "" if nothing."""
    has_all = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
    return "" if has_all else "network namespaces need root and iproute2 (ip, tc)"


def on_host(host, words):
    """A command line in a namespace, on a core of its own."""
    cores = sorted(os.sched_getaffinity(0))
    return ["ip", "netns", "exec", namespace(host), "taskset", "-c", str(cores[host % len(cores)]), *map(str, words)]


def medians(text):
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {row["bytes"]: row["median_us"] for row in rows}


def run_both(words, **variables):
    """Runs a rank on each host with torchrun's variables; rank 0's output."""
    processes = []
    for host in range(2):
        environment = dict(os.environ, RANK=str(host), WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1", LOCAL_SIZE="2",
                           MASTER_ADDR=ADDRESSES[0], MASTER_PORT=PORT, OMP_NUM_THREADS="1", **variables)
        environment["GLOO_SOCKET_IFNAME"] = f"cable{host}"
        processes.append(subprocess.Popen(on_host(host, words), env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise SystemExit(f"{words[0]} failed; its errors are above")
    return outputs[0]


def cleave(options, _folder):
    return medians(run_both([options.build / "cleave", "bench", "collectives", "--op", "all-reduce", "--world", "2",
                             "--one-core", "--bytes", options.bytes, "--seconds", options.seconds, "--json"]))


def gloo(options, _folder):
    return medians(run_both([options.python, ROOT / "bench/baselines/all_reduce.py", "--engine", "gloo", "--bytes",
                             options.bytes, "--seconds", options.seconds]))


def open_mpi(options, folder):
    program, agent = folder / "mpi_collectives", folder / "agent"
    if not program.exists():
        subprocess.run(["mpicxx.openmpi", "-O3", "-std=c++17", ROOT / "bench/baselines/mpi_collectives.cc", "-o", program],
                       check=True)
    # In place of ssh. A host name of its own, because Open MPI takes hosts of one name for one host.
    second = shlex.join(on_host(1, ["unshare", "--uts", "bash", "-c", 'hostname second; eval "$0"']))
    agent.write_text(f'#!/bin/bash\nshift\nexec {second} "$*"\n')
    agent.chmod(0o755)
    settings = {"plm_rsh_agent": agent, "btl": "tcp,self", "pml": "ob1", "btl_tcp_if_include": "10.78.0.0/24",
                "oob_tcp_if_include": "10.78.0.0/24", "rmaps_base_mapping_policy": "node"}
    words = ["mpirun.openmpi", "--allow-run-as-root", "-n", "2", "-H", ",".join(ADDRESSES), "--bind-to", "none"]
    for name, value in settings.items():
        words += ["--mca", name, value]
    done = subprocess.run(on_host(0, [*words, program, options.seconds, options.bytes]), stdout=subprocess.PIPE, text=True,
                          check=True)
    return medians(done.stdout)


def engines(options):
    """The engines that this machine has, by name; the others are named on stderr."""
    found = {}
    if (options.build / "cleave").exists():
        found["Cleave, TCP"] = cleave
    if shutil.which("mpirun.openmpi") and shutil.which("mpicxx.openmpi"):
        found["Open MPI, TCP"] = open_mpi
    if options.python:
        found["Gloo"] = gloo
    for name, remedy in (("Cleave, TCP", "build it, or name its folder with --build"),
                         ("Open MPI, TCP", "install openmpi-bin and libopenmpi-dev"),
                         ("Gloo", "set CLEAVE_PYTHON to a Python with torch")):
        if name not in found:
            print(f"left out: {name}; {remedy}", file=sys.stderr)
    return found


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} B"


def main():
    parser = argparse.ArgumentParser(description="times all-reduces between two hosts")
    parser.add_argument("--build", type=Path, default=ROOT / "build/release", help="folder of the program cleave")
    parser.add_argument("--gbit", default="1,10", help="rates of the network in Gbit/s")
    parser.add_argument("--bytes", default=SIZES)
    parser.add_argument("--seconds", default="2", help="for each size")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.python = os.environ.get("CLEAVE_PYTHON")
    missing = missing_for_hosts()
    if missing:
        return missing
    found = engines(options)
    with tempfile.TemporaryDirectory() as folder, Hosts() as hosts:
        print("Microseconds of an fp32 all-reduce between two hosts.\n")
        print(f"| network | bytes | {' | '.join(found)} |\n|---|---|{'---|' * len(found)}")
        for gbit in map(float, options.gbit.split(",")):
            hosts.limit(gbit)
            times = {name: run(options, Path(folder)) for name, run in found.items()}
            for size in map(int, options.bytes.split(",")):
                cells = " | ".join(f"{times[name][size]:.0f}" for name in found)
                print(f"| {gbit:g} Gbit/s | {size_text(size)} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
