#!/usr/bin/env python3
"""Times llama.cpp (through llama-cpp-python's C interface) on a GGUF file of make_model.py. Prints one line of JSON."""
import ctypes
import sys
import time

import generation


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
        settings.n_ctx = options.prompt_len + options.new_tokens + 1
        settings.n_batch = settings.n_ubatch = options.prompt_len
        settings.n_threads = settings.n_threads_batch = options.threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def clear(self):
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), True)

    def next_token(self, ids):
        """Appends ids to the sequence and returns the most likely next id."""
        import numpy

        array = (self.api.llama_token * len(ids))(*ids)
        if self.api.llama_decode(self.context, self.api.llama_batch_get_one(array, len(ids))) != 0:
            raise SystemExit("llama_decode failed")
        scores = self.api.llama_get_logits_ith(self.context, -1)
        return int(numpy.ctypeslib.as_array(scores, shape=(self.vocab_size,)).argmax())


def main():
    options = generation.parse_options("times llama.cpp's generation", ["fp32", "bf16", "int8", "int4", "int4_sym"])
    context = Context(options)
    prompt = generation.random_prompt(options, context.vocab_size)

    def run():
        context.clear()
        start = time.monotonic()
        token = context.next_token(prompt)
        prefilled = time.monotonic()
        for _ in range(options.new_tokens):
            token = context.next_token([token])
        return prefilled - start, time.monotonic() - prefilled

    generation.print_result("llama.cpp", options, generation.measure(options, run))
    return 0


if __name__ == "__main__":
    sys.exit(main())
