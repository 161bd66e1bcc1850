#!/usr/bin/env python3
"""Times CTranslate2's generation on a model of make_model.py, in one process. Prints one line of JSON."""
import sys
import time

import generation


def main():
    options = generation.parse_options("times CTranslate2's generation", ["fp32", "int8"])
    import ctranslate2

    generator = ctranslate2.Generator(options.model, device="cpu", inter_threads=1, intra_threads=options.threads,
                                      compute_type={"fp32": "float32", "int8": "int8"}[options.dtype])
    prompts = [[f"t{number}" for number in prompt] for prompt in generation.random_prompts(options, 32000)]

    def seconds_of(new_tokens):
        start = time.monotonic()
        result = generator.generate_batch(prompts, max_length=new_tokens, min_length=new_tokens, beam_size=1,
                                          include_prompt_in_result=False)
        counts = {len(sequence.sequences_ids[0]) for sequence in result}
        if counts != {new_tokens}:
            raise SystemExit(f"{counts} tokens were generated; expected {new_tokens}")
        return time.monotonic() - start

    def run():
        first = seconds_of(1)
        return first, seconds_of(1 + options.new_tokens) - first

    generation.print_result("ctranslate2", options, generation.measure(options, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
