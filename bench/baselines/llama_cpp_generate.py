#!/usr/bin/env python3
"""Times llama.cpp (through llama-cpp-python's C interface) on a GGUF file of make_model.py. Prints one line of JSON."""
import ctypes
import sys
import time

import generation

LARGEST_STEP = 512  # tokens that llama.cpp computes together; its default


class Context:
    """A model and its KV cache."""

    def __init__(self, options):
        import llama_cpp

        self.api = llama_cpp
        self.log = llama_cpp.llama_log_callback(lambda *_: None)  # must stay alive: the library calls it
        llama_cpp.llama_log_set(self.log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(options.model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {options.model}; remove it, so that make_model.py writes it again")
        settings = llama_cpp.llama_context_default_params()
        self.batch_size = options.batch_size
        settings.n_seq_max = options.batch_size
        settings.n_ctx = options.batch_size * (options.prompt_len + options.new_tokens + 1)
        settings.n_batch = options.batch_size * options.prompt_len
        settings.n_ubatch = min(settings.n_batch, LARGEST_STEP)
        settings.kv_unified = False  # its own cache for each sequence
        settings.n_threads = settings.n_threads_batch = options.threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        if not self.context:
            raise SystemExit("llama.cpp cannot make a context")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def next_tokens(self, ids, start):
        """Appends ids[b] to sequence b, whose length is `start`, and returns the most likely next id of each."""
        import numpy

        batch, count, last = self.batch, 0, []
        for number, sequence in enumerate(ids):
            for place, token in enumerate(sequence):
                batch.token[count], batch.pos[count] = token, start + place
                batch.n_seq_id[count], batch.seq_id[count][0] = 1, number
                batch.logits[count] = place + 1 == len(sequence)
                count += 1
            last.append(count - 1)
        batch.n_tokens = count
        if self.api.llama_decode(self.context, batch) != 0:
            raise SystemExit("llama_decode failed")
        scores = [self.api.llama_get_logits_ith(self.context, place) for place in last]
        return [int(numpy.ctypeslib.as_array(line, shape=(self.vocab_size,)).argmax()) for line in scores]


def main():
    options = generation.parse_options("times llama.cpp's generation", ["fp32", "bf16", "int8", "int4", "int4_sym"])
    context = Context(options)
    prompts = generation.random_prompts(options, context.vocab_size)

    def run():
        context.clear()
        start = time.monotonic()
        tokens = context.next_tokens(prompts, 0)
        prefilled = time.monotonic()
        for step in range(options.new_tokens):
            tokens = context.next_tokens([[token] for token in tokens], options.prompt_len + step)
        return prefilled - start, time.monotonic() - prefilled

    generation.print_result("llama.cpp", options, generation.measure(options, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
