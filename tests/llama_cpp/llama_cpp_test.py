#!/usr/bin/env python3
"""Compares the greedy tokens of GGUF files in llama.cpp with those of Cleave. Skipped (exit code 77) without llama.cpp.

usage: llama_cpp_test.py CLEAVE

The models: a Llama and a GPT-2 that CLEAVE trains here, and the trained models of CLEAVE_DATA, if it is set. Each is
converted to GGUF; llama.cpp and CLEAVE read the same file. The fp32 files and their prompts must give the same tokens and
ids; the quantised ones must be loaded, and Cleave must give the same tokens from them with its own decoding.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
NUM_TOKENS = 48
PROMPTS = ["Once upon a time", "The tensor-parallel ranks of a job", "1234 and don't stop: a, b"]

# Reads jobs {"model", "ids"} as JSON lines from stdin, writes the generated ids of each.
IN_LLAMA_CPP = """
import json, sys, xllamacpp
for line in sys.stdin:
    job = json.loads(line)
    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx = job["n_ctx"]
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.warmup = False
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    found = []
    for prompt in job["prompts"]:
        answer = server.handle_completions({
            "prompt": prompt, "max_tokens": job["count"], "temperature": 0, "top_k": 1, "return_tokens": True,
            "return_progress": False, "ignore_eos": False, "cache_prompt": False})
        found.append(answer)
    print("ANSWER " + json.dumps(found), flush=True)
"""


def python():
    return os.environ.get("CLEAVE_PYTHON", "python3")


def has_llama_cpp():
    return subprocess.run([python(), "-c", "import xllamacpp"], capture_output=True).returncode == 0


def run(cleave, *words):
    result = subprocess.run([cleave, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"cleave {' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def cleave_answers(cleave, model):
    words = ["generate", "--model", model, "--json", "--max-new-tokens", NUM_TOKENS]
    for prompt in PROMPTS:
        words += ["--prompt", prompt]
    return [json.loads(line) for line in run(cleave, *words).splitlines()]


def llama_answers(model, n_ctx):
    job = {"model": str(model), "prompts": PROMPTS, "count": NUM_TOKENS, "n_ctx": n_ctx}
    result = subprocess.run([python(), "-c", IN_LLAMA_CPP], input=json.dumps(job) + "\n", capture_output=True, text=True)
    for line in result.stdout.splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line[len("ANSWER "):])
    sys.exit(f"llama.cpp cannot run {model}:\n{result.stderr[-3000:]}")
