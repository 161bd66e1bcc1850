#!/usr/bin/env python3
"""Times generation of PyTorch with transformers' models and cache: eager, one process. Prints one line of JSON."""
import sys
import time

import generation
import shapes


def main():
    options = generation.parse_options("times transformers' generation", ["fp32", "bf16"])
    import torch

    torch.set_num_threads(options.threads)
    model = shapes.make_model(options.shape).eval().to(torch.bfloat16 if options.dtype == "bf16" else torch.float32)
    prompt = torch.tensor(generation.random_prompts(options, model.config.vocab_size))

    @torch.inference_mode()
    def run():
        start = time.monotonic()
        out = model(input_ids=prompt, use_cache=True, logits_to_keep=1)
        token = out.logits[:, -1:].argmax(-1)
        prefilled = time.monotonic()
        for _ in range(options.new_tokens):
            out = model(input_ids=token, past_key_values=out.past_key_values, use_cache=True, logits_to_keep=1)
            token = out.logits[:, -1:].argmax(-1)
        return prefilled - start, time.monotonic() - prefilled

    generation.print_result("pytorch", options, generation.measure(options, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
