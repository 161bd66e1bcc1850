#!/usr/bin/env python3
"""Times vLLM's generation on CPUs, with one process or tensor-parallel (one process per rank). Prints one line of JSON."""
import os
import sys
import time

import generation


def bind_ranks(options):
    """Binds each rank's threads to its own cores with vLLM's environment variables."""
    cores = sorted(os.sched_getaffinity(0))
    threads = max(1, options.threads // options.tp)
    parts = [cores[rank * threads:(rank + 1) * threads] for rank in range(options.tp)]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(",".join(map(str, part)) for part in parts)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


def main():
    options = generation.parse_options("times vLLM's generation", ["fp32", "bf16"])
    bind_ranks(options)
    import vllm

    engine = vllm.LLM(model=options.model, skip_tokenizer_init=True, tensor_parallel_size=options.tp,
                      dtype={"fp32": "float32", "bf16": "bfloat16"}[options.dtype], max_num_seqs=options.batch_size,
                      max_model_len=options.prompt_len + options.new_tokens + 1, enable_prefix_caching=False,
                      disable_log_stats=True)
    prompts = [{"prompt_token_ids": ids} for ids in generation.random_prompts(options, engine.model_config.get_vocab_size())]

    def seconds_of(new_tokens):
        settings = vllm.SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        start = time.monotonic()
        result = engine.generate(prompts, settings, use_tqdm=False)
        counts = {len(sequence.outputs[0].token_ids) for sequence in result}
        if counts != {new_tokens}:
            raise SystemExit(f"{counts} tokens were generated; expected {new_tokens}")
        return time.monotonic() - start

    def run():
        first = seconds_of(1)
        return first, seconds_of(1 + options.new_tokens) - first

    run()  # vLLM's first calls are slow
    generation.print_result("vllm", options, generation.measure(options, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
