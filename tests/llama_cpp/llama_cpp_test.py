#!/usr/bin/env python3
"""Compares the greedy tokens of GGUF files in llama.cpp with those of Cleave. Skipped (exit code 77) without llama.cpp.

usage: llama_cpp_test.py CLEAVE

The models: one of each family that CLEAVE trains here, and the trained models of CLEAVE_DATA, if it is set. Each is
converted to GGUF; llama.cpp and CLEAVE read the same file. The ids of the prompts must be equal, and with fp32 and fp16 the
new tokens too. With quantised files llama.cpp rounds activations to 8 bits, so only how many texts are equal is printed.
A model that is tuned as docs/chat.md shows must give the same answers in llama.cpp's chat as in CLEAVE's. Tokens that take
the white space after them must do so in both, and runs of spaces that are tokens must be found by both.
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

# Reads a job {"model", "prompts", "count", "n_ctx"} from stdin, writes {"prompt_ids", "prompt_text", "new_ids"} of each prompt.
IN_LLAMA_CPP = """
import json, sys, urllib.request, xllamacpp
job = json.load(sys.stdin)
params = xllamacpp.CommonParams()
params.model.path = job["model"]
params.n_ctx = job["n_ctx"]
params.n_parallel = 1
params.cpuparams.n_threads = 1
params.warmup = False
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
def post(path, body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request))
found = []
for prompt in job["prompts"]:
    ids = post("/tokenize", {"content": prompt, "add_special": True})["tokens"]
    answer = post("/completion", {"prompt": ids, "n_predict": job["count"], "temperature": 0, "samplers": ["top_k"],
                                  "top_k": 1, "return_tokens": True, "cache_prompt": False})
    text = post("/detokenize", {"tokens": ids})["content"]
    found.append({"prompt_ids": ids, "prompt_text": text, "new_ids": answer["tokens"]})
print("ANSWER " + json.dumps(found), flush=True)
"""


# Reads a job {"model", "messages"} from stdin, writes the answer to each message in a chat of its own.
CHAT_IN_LLAMA_CPP = IN_LLAMA_CPP[:IN_LLAMA_CPP.index("found = []")] + """
found = [post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "temperature": 0,
                                       "max_tokens": job["count"]})["choices"][0]["message"]["content"]
         for text in job["messages"]]
print("ANSWER " + json.dumps(found), flush=True)
"""
# An answer ends with the end token: the tokenizer of bytes has no other token at which llama.cpp could stop.
TEMPLATE = ("{% for m in messages %}{{ m['role'] + ': ' + m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}"
            "{% endif %}{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}")
CHATS = {"Hi": "Hello.", "Bye": "See you."}


def python():
    return os.environ.get("CLEAVE_PYTHON", "python3")


def has_llama_cpp():
    return subprocess.run([python(), "-c", "import xllamacpp"], capture_output=True).returncode == 0


def run(cleave, *words):
    result = subprocess.run([cleave, *map(str, words)], capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"cleave {' '.join(map(str, words))}\n{result.stderr}")
    return result.stdout


def cleave_answers(cleave, model, prompts=PROMPTS):
    words = ["generate", "--model", model, "--json", "--max-new-tokens", NUM_TOKENS]
    for prompt in prompts:
        words += ["--prompt", prompt]
    return [json.loads(line) for line in run(cleave, *words).splitlines()]


def llama_answers(model, n_ctx, prompts=PROMPTS):
    return llama_cpp(IN_LLAMA_CPP, model, n_ctx, prompts=prompts)


def llama_cpp(script, model, n_ctx, **job):
    job |= {"model": str(model), "count": NUM_TOKENS, "n_ctx": n_ctx}
    result = subprocess.run([python(), "-c", script], input=json.dumps(job) + "\n", capture_output=True, text=True)
    for line in result.stdout.splitlines():
        if line.startswith("ANSWER "):
            return json.loads(line[len("ANSWER "):])
    sys.exit(f"llama.cpp cannot run {model}:\n{result.stderr[-3000:]}")


LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 257, "hidden_size": 256,
         "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
         "head_dim": 64, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
         "tie_word_embeddings": False, "rope_theta": 10000.0,
         "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                          "original_max_position_embeddings": 64}}
DECODER = {key: LLAMA[key] for key in LLAMA if key != "rope_scaling"}
QWEN2 = {**DECODER, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
QWEN3 = {**DECODER, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 128}
MISTRAL = {**DECODER, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None}
QWEN3_MOE = {**DECODER, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 4,
             "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True}
MIXTRAL = {**DECODER, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
           "num_experts_per_tok": 2}
OLMO2 = {**DECODER, "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
PHI3 = {**DECODER, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 256}
# Longrope: llama.cpp has the long factors if its context is longer than the original one, Cleave if the sequence is.
FACTORS = {"short_factor": [1 + i / 16 for i in range(16)], "long_factor": [1 + i for i in range(16)]}
SHORT_ROPE = {**PHI3, "max_position_embeddings": 512, "rope_scaling": {"type": "longrope", **FACTORS}}
LONG_ROPE = {**PHI3, "original_max_position_embeddings": 8, "rope_scaling": {"type": "longrope", **FACTORS}}
# The fourth of five layers has no rotary positions.
SMOLLM3 = {**DECODER, "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "num_hidden_layers": 5,
           "no_rope_layer_interval": 4,
           "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
                            "attention_factor": 1.3, "beta_fast": 8.0}}
# Windows shorter than the texts; seven layers have both kinds of Gemma 3's.
GEMMA2 = {**DECODER, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "query_pre_attn_scalar": 64,
          "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 24,
          "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
GEMMA3 = {**DECODER, "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "query_pre_attn_scalar": 64,
          "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 24,
          "num_hidden_layers": 7, "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 257, "n_embd": 256, "n_layer": 2,
        "n_head": 4, "n_positions": 256}


def trained(cleave, folder, name, config):
    """A model of bytes, trained until its tokens are certain."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(config))
    run(cleave, "train", "--model", path, "--data", "README.md", "--tokenizer", "bytes", "--out", folder / name, "--steps",
        60, "--seq-len", 64, "--batch-size", 8, "--lr", 0.003)
    return folder / name


def without_end(ids, end):
    return ids[:-1] if ids and ids[-1] == end else ids


def check(cleave, folder, name, model, n_ctx):
    """Compares the files of one model; returns the problems."""
    problems = []
    for dtype in ["fp32", "fp16", "q8_0", "q4_k_m"]:
        file = folder / f"{name}-{dtype}.gguf"
        run(cleave, "convert", "--from", model, "--to", file, "--format", "gguf", "--dtype", dtype)
        theirs, ours = llama_answers(file, n_ctx), cleave_answers(cleave, file)
        is_exact = dtype in ("fp32", "fp16")  # the others round activations to 8 bits in llama.cpp
        end = json.loads(run(cleave, "inspect", file, "--json"))["metadata"].get("tokenizer.ggml.eos_token_id")
        num_equal = 0
        for prompt, a, b in zip(PROMPTS, theirs, ours):
            if a["prompt_ids"] != b["prompt_ids"]:
                problems.append(f"{file.name}: {prompt!r} is {a['prompt_ids']} in llama.cpp, {b['prompt_ids']} in Cleave")
            new = b["sequences"][0]["ids"]
            is_equal = without_end(a["new_ids"], end) == without_end(new, end)
            num_equal += is_equal
            if is_exact and not is_equal:
                problems.append(f"{file.name}: after {prompt!r} llama.cpp has {a['new_ids']}, Cleave {new}")
            if not a["new_ids"]:
                problems.append(f"{file.name}: llama.cpp has no token after {prompt!r}")
        print(f"{file.name}: {num_equal} of {len(PROMPTS)} texts of {NUM_TOKENS} tokens are equal")
    return problems


def check_chat(cleave, folder):
    """The steps of docs/chat.md: a model is tuned on chats, then an adapter, and both become one file."""
    chats, template = folder / "chats.jsonl", folder / "template.jinja"
    template.write_text(TEMPLATE)
    rows = [{"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
            for ask, answer in CHATS.items()]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows) * 40)
    sizes = ["--batch-size", 4, "--seq-len", 96, "--lr", 2e-3]
    run(cleave, "train", "--model", "llama-tiny", "--data", chats, "--chat-template", template, "--out", folder / "chat",
        "--steps", 60, *sizes)
    run(cleave, "train", "--model", folder / "chat", "--data", chats, "--out", folder / "adapter", "--lora", 4, "--steps", 20,
        *sizes)
    file = folder / "chat.gguf"
    run(cleave, "convert", "--from", folder / "adapter", "--to", file)
    theirs = llama_cpp(CHAT_IN_LLAMA_CPP, file, 256, messages=list(CHATS))
    ours = [run(cleave, "generate", "--model", file, "--chat", "--prompt", ask, "--max-new-tokens", NUM_TOKENS).strip()
            for ask in CHATS]
    print(f"{file.name}: llama.cpp answers {theirs}, Cleave {ours}")
    wanted = list(CHATS.values())
    return [] if theirs == ours == wanted else [f"{file.name}: llama.cpp answers {theirs}, Cleave {ours}; expected {wanted}"]


def check_phi3_tokens(cleave, folder):
    """Tokens that take the white space after them, as Phi-3's do: the ids must be equal."""
    source = pathlib.Path(__file__).resolve().parents[1] / "golden/tokenizer/small/llama2/tokenizer.json"
    tokenizer = json.loads(source.read_text())
    for token in tokenizer["added_tokens"]:
        if token["content"] == "</s>":
            token |= {"rstrip": True, "special": False}
    for content in ["<|endoftext|>", "<|user|>", "<|end|>"]:
        tokenizer["added_tokens"].append({"id": 1997 + len(tokenizer["added_tokens"]), "content": content, "single_word": False,
                                          "lstrip": False, "rstrip": content != "<|endoftext|>", "normalized": False,
                                          "special": True})
    prompts = ["<|user|>\n  Hello <|end|>\n <|user|> x", "a </s>  b", "<s>  a <|endoftext|> \n a <unk> b"]
    return compare_ids(cleave, folder, "phi3-tokens", tokenizer, prompts)[0]


def check_runs_of_spaces(cleave, folder):
    """Runs of spaces that are tokens, as Gemma's are: the ids must be equal, and llama.cpp must write them as spaces."""
    source = pathlib.Path(__file__).resolve().parents[1] / "golden/tokenizer/small/gemma/tokenizer.json"
    prompts = ["if a:    b", "  a\n\n   b     c", "a b<table>  c "]
    problems, texts = compare_ids(cleave, folder, "runs", json.loads(source.read_text()), prompts)
    wrong = [text for prompt, text in zip(prompts, texts) if not text.endswith(prompt)]
    return problems + [f"llama.cpp writes {text!r}; expected one of {prompts}" for text in wrong]


def compare_ids(cleave, folder, name, tokenizer, prompts):
    """Compares the ids of prompts in a model with this tokenizer; returns the problems, and llama.cpp's texts of its ids."""
    tokens, config, model, file = (folder / f"{name}{end}" for end in ("-tokens", ".json", "", ".gguf"))
    tokens.mkdir()
    (tokens / "tokenizer.json").write_text(json.dumps(tokenizer))
    config.write_text(json.dumps({**LLAMA, "vocab_size": 2000 + 3}))
    run(cleave, "train", "--model", config, "--data", "README.md", "--tokenizer", tokens, "--out", model,
        "--steps", 1, "--seq-len", 32, "--batch-size", 2)
    run(cleave, "convert", "--from", model, "--to", file, "--dtype", "fp16")
    answers = llama_answers(file, 256, prompts)
    theirs = [answer["prompt_ids"] for answer in answers]
    ours = [answer["prompt_ids"] for answer in cleave_answers(cleave, file, prompts)]
    print(f"{file.name}: {sum(a == b for a, b in zip(theirs, ours))} of {len(prompts)} texts have equal ids")
    problems = [] if theirs == ours else [f"{file.name}: {prompts} are {theirs} in llama.cpp, {ours} in Cleave"]
    return problems, [answer["prompt_text"] for answer in answers]


def main():
    if not has_llama_cpp():
        print(f"skipped: {python()} has no xllamacpp; install it (pip install xllamacpp) and name its Python in CLEAVE_PYTHON")
        sys.exit(SKIPPED)
    cleave = os.path.abspath(sys.argv[1])
    problems = []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        # A model named phi3 without Phi-3's tokens gets another name in the file: llama.cpp would not open it.
        configs = {"llama": LLAMA, "gpt2": GPT2, "qwen2": QWEN2, "qwen3": QWEN3, "mistral": MISTRAL, "olmo2": OLMO2,
                   "phi3": PHI3, "gemma2": GEMMA2, "gemma3": GEMMA3, "mixtral": MIXTRAL, "qwen3-moe": QWEN3_MOE,
                   "smollm3": SMOLLM3, "short-rope": SHORT_ROPE, "long-rope": LONG_ROPE}
        models = [(one, trained(cleave, folder, one, config), 256) for one, config in configs.items()]
        data = os.environ.get("CLEAVE_DATA")
        if data:
            models += [(one, pathlib.Path(data) / "models" / one, n_ctx)
                       for one, n_ctx in [("stories260K", 512), ("gpt2-shakespeare", 256)]]
        for one, model, n_ctx in models:
            problems += check(cleave, folder, f"{one}-file", model, n_ctx)
        problems += check_chat(cleave, folder)
        problems += check_phi3_tokens(cleave, folder)
        problems += check_runs_of_spaces(cleave, folder)
    if problems:
        sys.exit("\n".join(problems))


if __name__ == "__main__":
    main()
