"""Shared parts of the programs that time generation: their options, the prompt, and the line of JSON that they print.

A run is --batch-size prompts of random ids, then greedy tokens of each. As in `cleave bench generate`, prefill is the time to
the first new token, and decode the time of the `--new-tokens` after it; tokens are those of all sequences. The first run is not timed; the result is the median of the others.
"""
import argparse
import json
import os
import random
import statistics


def parse_options(description, dtypes):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--shape", required=True, choices=["gpt2-124m", "llama-135m", "llama-1.1b"])
    parser.add_argument("--dtype", default="fp32", choices=dtypes)
    parser.add_argument("--model", help="file or folder that make_model.py wrote")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tp", type=int, default=1, help="ranks, if the program supports several")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--prompt-len", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def random_prompts(options, vocab_size):
    source = random.Random(1)
    return [[source.randrange(vocab_size) for _ in range(options.prompt_len)] for _ in range(options.batch_size)]


def measure(options, run):
    """`run()` returns the seconds to the first token and of the tokens after it. Returns the lists of both."""
    run()
    return zip(*(run() for _ in range(options.repeats)))


def print_result(baseline, options, seconds):
    prefill_s, decode_s = (list(part) for part in seconds)
    print(json.dumps({
        "baseline": baseline, "shape": options.shape, "dtype": options.dtype, "batch_size": options.batch_size,
        "prompt_len": options.prompt_len, "new_tokens": options.new_tokens, "threads": options.threads, "tp": options.tp,
        "prefill_tokens_per_s": options.batch_size * options.prompt_len / statistics.median(prefill_s),
        "decode_tokens_per_s": options.batch_size * options.new_tokens / statistics.median(decode_s)}), flush=True)
