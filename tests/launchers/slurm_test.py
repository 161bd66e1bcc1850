#!/usr/bin/env python3
"""Trains with CLEAVE under Slurm itself: slurmctld, slurmd and munged of this test, on this machine, in a folder of their own.
Skipped (exit code 77) without slurm-wlm and munge, or not as root.

usage: slurm_test.py CLEAVE    run in the repository

`srun -n 2` must give the losses of two threads, bit for bit; a batch job that requeues itself must resume, and end with the
losses of a run without a break.
"""
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "sbatch", "scontrol", "scancel", "sinfo", "squeue")
LIMIT_S = 100


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not after {LIMIT_S} s")
        time.sleep(0.1)


class Cluster:
    """Slurm on one machine."""

    def __init__(self, folder):
        self.folder, self.daemons = folder, []
        host = socket.gethostname().split(".")[0]
        controller, node = free_ports(2)
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        (folder / "slurm.conf").write_text(f"""ClusterName=cleave
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
""")
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self):
        munge = self.folder / "munge"
        self.start("munged", "-F", "--force", f"--key-file={munge}.key", f"--socket={munge}.socket", f"--pid-file={munge}.pid",
                   f"--log-file={munge}.log", f"--seed-file={munge}.seed")
        wait_for(pathlib.Path(f"{munge}.socket").exists, "munged")
        self.start("slurmctld", "-D")
        self.start("slurmd", "-D")
        wait_for(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False).stdout, "slurmd")
        return self

    def __exit__(self, *_):
        # Of a test that failed: without the daemons, nothing would end the ranks of its job.
        self.run("scancel", "--user=root", check=False)
        wait_for(lambda: not self.run("squeue", "-h", check=False).stdout, "end of the jobs")
        for daemon in reversed(self.daemons):
            daemon.terminate()
            daemon.wait()

    def start(self, *words):
        with open(self.folder / f"{words[0]}.out", "w") as out:
            self.daemons.append(subprocess.Popen(words, env=self.environment, stdout=out, stderr=out))

    def run(self, *words, check=True):
        ran = subprocess.run([str(word) for word in words], env=self.environment, capture_output=True, text=True, timeout=LIMIT_S)
        if check and ran.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}\n{ran.stdout}{ran.stderr}")
        return ran

    def state(self, job):
        """How often the job was requeued, and its state: (1, "RUNNING")."""
        text = self.run("scontrol", "show", "job", "-o", job).stdout
        return int(re.search(r"Restarts=(\d+)", text).group(1)), re.search(r"JobState=(\w+)", text).group(1)


def words_of(cleave, out, *more):
    return [cleave, "train", "--model", "llama-tiny", "--data", pathlib.Path("LICENSE").resolve(), "--out", out, "--steps", "6",
            "--seq-len", "32", "--batch-size", "4", "--dp", "2", "--gemm", "mkl", "--threads-per-rank", "1", *more]


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_srun(cluster, cleave, folder):
    cluster.run(*words_of(cleave, folder / "threads"))
    cluster.run("srun", "-n", "2", *words_of(cleave, folder / "srun"))
    assert losses(folder / "srun") == losses(folder / "threads")
    print("srun -n 2: the losses of two threads")


def test_requeue(cluster, cleave, folder):
    """The first part of the job gets SIGTERM, saves, exits with 143 and requeues itself. The second has no --resume."""
    more = ("--steps", "300", "--save-every", "150")  # long enough for the signal to arrive first
    cluster.run(*words_of(cleave, folder / "whole", *more))
    out, log, script = folder / "job", folder / "job.log", folder / "job.sbatch"
    command = " ".join(map(str, words_of(cleave, out, *more)))
    script.write_text(f"""#!/bin/bash
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={log}
srun -n 2 {command} & step=$!
if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then
  until grep -q '"step":8,' {out}/metrics.jsonl 2>/dev/null; do sleep 0.05; done
  scancel --signal=TERM "$SLURM_JOB_ID.0"
fi
wait $step; status=$?
if [ $status = 143 ]; then scontrol requeue "$SLURM_JOB_ID"; exit 0; fi
exit $status
""")
    job = cluster.run("sbatch", "--parsable", "-n", "2", script).stdout.strip()
    wait_for(lambda: cluster.state(job) == (1, "PENDING"), "requeue")
    # Slurm delays a requeued job by two minutes.
    cluster.run("scontrol", "update", f"JobId={job}", "StartTime=now")
    wait_for(lambda: cluster.state(job) in ((1, "COMPLETED"), (1, "FAILED")), "second part")
    text = log.read_text()
    assert "resumed after step" in text, text
    assert losses(out) == losses(folder / "whole"), text
    print("sbatch: a requeued job resumes, with the losses of a run without a break")


def main():
    missing = [name for name in PROGRAMS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing or os.geteuid() != 0:
        print("skipped: needs root, slurm-wlm and munge; missing:", ", ".join(missing) or "root")
        sys.exit(SKIPPED)
    if os.cpu_count() < 2:
        print("skipped: needs two CPUs")
        sys.exit(SKIPPED)
    os.environ["PATH"] += ":/usr/sbin"
    cleave = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "slurm").mkdir()
        with Cluster(folder / "slurm") as cluster:
            test_srun(cluster, cleave, folder)
            test_requeue(cluster, cleave, folder)


main()
