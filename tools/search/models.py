"""Random models as folders: config.json, model.safetensors and, if a case needs text, a tokenizer.

A case's model is a dict of changes of DEFAULTS, so that a shrunk case shows only relevant keys.
"""
import json
import os
import random
import shutil
import zlib

import tensor_file

DEFAULTS = {
    "family": "llama",    # one of DECODERS | gpt2 | one of ENCODERS | imdb_bert
    "source": "folder",   # folder | config (initial weights of Cleave) | a preset's name
    "window": 0,          # of the families with sliding windows; 0: none
    "layers": 2, "heads": 2, "kv_heads": 0, "head_dim": 4, "hidden": 0, "inter": 12, "vocab": 31, "positions": 64,
    "tied": False, "attention_bias": False, "mlp_bias": False, "activation": "", "theta": 10000.0, "rope": "default",
    # Of ENCODERS: mlm | classify (with one class a regression) | pretraining (only bert) | trunk. Others with classify label
    # sequences, else they are language models.
    "head": "mlm",
    "multilabel": False,  # of the head classify: a sequence may have several classes
    "classes": 2, "dropout": 0.0, "file_dtype": "fp32", "gain": 1.0, "seed": 0,
    "scale_by_layer": False, "unscaled": False, "pad_id": -1, "eos_id": -1, "token_types": 2, "tokenizer": "",
    "experts": 2,         # of mixtral and qwen3_moe
    "experts_per_token": 0,  # 0: all of them, so that rounding does not decide which
    "balances": False,    # whether the loss contains the auxiliary loss of experts
    "no_rope_every": 0,   # of smollm3: 0: layers without rotary positions by the seed
    "short_length": 1,    # of longrope: longer sequences have the long factors
    "names": "",          # "" | old | extra: alternative tensor names in real files
    # Relative changes with random sign, and a file dtype that can represent them; see confirm.py.
    "nudge": 0, "nudge_size": 0.0, "nudge_dtype": "",
}
# Llama, and its relatives by the name that transformers gives their classes.
DECODERS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "smollm3": "SmolLM3",
            "olmo2": "Olmo2", "olmo3": "Olmo3", "phi3": "Phi3", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe",
            "gemma2": "Gemma2", "gemma3_text": "Gemma3"}
# The first part of the names of classes, of BERT and its relatives.
ENCODERS = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
GEMMA = ("gemma2", "gemma3_text")
OLMO = ("olmo2", "olmo3")
WITH_EXPERTS = ("mixtral", "qwen3_moe")
# The blocks of a family other than Llama and its relatives.
BLOCKS = {"gpt2": "transformer.h", "bert": "bert.encoder.layer", "roberta": "roberta.encoder.layer",
          "distilbert": "distilbert.transformer.layer"}
# Layers of an MLP, by family, that a plan can shard.
WITH_PLANS = {"gpt2": ("transformer.h.*.mlp.c_fc", "transformer.h.*.mlp.c_proj"),
              "distilbert": ("distilbert.transformer.layer.*.ffn.lin1", "distilbert.transformer.layer.*.ffn.lin2")}
WITH_PLANS |= {family: (f"{family}.encoder.layer.*.intermediate.dense", f"{family}.encoder.layer.*.output.dense")
               for family in ("bert", "roberta")}
WITH_PLANS |= {family: ("model.layers.*.mlp.{gate_proj,up_proj}", "model.layers.*.mlp.down_proj")
               for family in ("llama", "qwen2", "qwen3", "mistral", "smollm3", "olmo2", "olmo3", "gemma2", "gemma3_text")}
WORDS = ("the", "of", "a", "cat", "dog", "runs", "film", "fine", "dull", "un", "##able", "##s", "##ing", ".", ",", "b", "c",
         "d", "e", "##a", "##b", "##c", "##d", "##e", "x", "y", "z", "##x", "##y", "##z")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def full(model):
    """The model with every key."""
    out = {**DEFAULTS, **model}
    if out["family"] in ("gpt2", "imdb_bert", *ENCODERS):
        out["hidden"] = out["heads"] * out["head_dim"]
        out["kv_heads"] = out["heads"]
    out["hidden"] = out["hidden"] or out["heads"] * out["head_dim"]
    out["kv_heads"] = out["kv_heads"] or out["heads"]
    out["vocab"] = max(out["vocab"], least_vocab(out))
    return out


def least_vocab(model):
    """The smallest vocabulary that the tokenizer needs; a new model has the byte tokenizer."""
    if model["tokenizer"] == "words":
        return len(SPECIAL) + len(WORDS)
    return 257 if model["tokenizer"] == "bytes" or model["source"] != "folder" else 2


def has_biases(m, kind):
    """Whether the family has the bias and the model uses it. `kind`: qkv, o or mlp."""
    if kind == "qkv" and m["family"] == "qwen2":
        return True
    if kind == "mlp":
        return m["mlp_bias"] and m["family"] in ("llama", "smollm3")
    return m["attention_bias"] and m["family"] in ("llama", "qwen3", "qwen3_moe", "smollm3", *OLMO, *GEMMA)


def classes_of(m):
    """What config.json has of a classifier's classes; nothing of other models."""
    if m["head"] != "classify":
        return {}
    labels = {"id2label": {str(i): f"class {i}" for i in range(m["classes"])}}
    return labels | ({"problem_type": "multi_label_classification"} if m["multilabel"] else {})


def decoder_class(m):
    """The name of the class in transformers, whose classifier of Gemma 3 without images has another name."""
    if m["head"] != "classify":
        return DECODERS[m["family"]] + "ForCausalLM"
    return DECODERS[m["family"]] + ("Text" if m["family"] == "gemma3_text" else "") + "ForSequenceClassification"


def own_settings(m):
    """What a family's config.json has in addition to Llama's."""
    family, window = m["family"], m["window"] or None
    if family in ("qwen2", "qwen3"):
        return {"use_sliding_window": bool(window), "sliding_window": window, "max_window_layers": m["layers"] // 2}
    if family == "smollm3":
        every = m["no_rope_every"]
        return {"use_sliding_window": bool(window), "sliding_window": window,
                "no_rope_layers": [int((i + 1) % every > 0) if every else (i + m["seed"]) % 2 for i in range(m["layers"])]}
    if family == "qwen3_moe":
        return {"use_sliding_window": bool(window), "sliding_window": window, "moe_intermediate_size": m["inter"],
                "num_experts": m["experts"], "num_experts_per_tok": m["experts_per_token"] or m["experts"],
                "norm_topk_prob": m["seed"] % 2 == 0,
                "mlp_only_layers": [0] if m["layers"] > 1 else []}
    if family == "mixtral":
        return {"sliding_window": window, "num_local_experts": m["experts"],
                "num_experts_per_tok": m["experts_per_token"] or m["experts"]}
    if family in ("mistral", "phi3"):
        return {"sliding_window": window}
    types = ["sliding_attention" if window and (i + m["seed"]) % 2 else "full_attention" for i in range(m["layers"])]
    if family == "olmo3":
        return {"sliding_window": window or 4096, "layer_types": types}
    if family in GEMMA:
        own = {"sliding_window": window or 4096, "layer_types": types, "rope_local_base_freq": 30.0,
               "hidden_activation": m["activation"] or "gelu_pytorch_tanh", "query_pre_attn_scalar": 2 * m["head_dim"],
               "final_logit_softcapping": (None, 2.0, 30.0)[m["seed"] % 3]}
        return own | ({"attn_logit_softcapping": (1.0, None, 50.0)[m["seed"] % 3]} if family == "gemma2" else {})
    return {}


def rope_settings(m):
    """rope_scaling of config.json. Only with `short_length` the frequencies change within a case."""
    factors = [1 + i / 4 for i in range(m["head_dim"] // 2)]
    # transformers 5.19 does not read the older name in models whose layers have two kinds of attention.
    name_of_kind = "rope_type" if m["family"] in ("gemma3_text", "olmo3") else "type"
    return {"linear": {name_of_kind: "linear", "factor": 2.5}, "dynamic": {name_of_kind: "dynamic", "factor": 2.0},
            "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                       "original_max_position_embeddings": 16},
            "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            "longrope": {"rope_type": "longrope", "short_factor": factors, "long_factor": factors[::-1],
                         "attention_factor": 1.2, "original_max_position_embeddings": m["short_length"]}}[m["rope"]]


def decoder_config(m):
    config = {"architectures": [decoder_class(m)], "model_type": m["family"], "hidden_size": m["hidden"],
              "intermediate_size": m["inter"], "num_hidden_layers": m["layers"], "num_attention_heads": m["heads"],
              "num_key_value_heads": m["kv_heads"], "head_dim": m["head_dim"], "hidden_act": m["activation"] or "silu",
              "max_position_embeddings": m["positions"], "rms_norm_eps": 1e-5, "attention_bias": has_biases(m, "o"),
              "mlp_bias": has_biases(m, "mlp"), "tie_word_embeddings": m["tied"]} | own_settings(m) | classes_of(m)
    if m["balances"] and m["family"] in WITH_EXPERTS:
        config |= {"output_router_logits": True, "router_aux_loss_coef": 0.5}
    if m["family"] != "llama":  # transformers refuses the families' own defaults outside the vocabulary
        config |= {"attention_dropout": m["dropout"], "pad_token_id": None, "eos_token_id": None}
    if m["rope"] == "parameters":
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": m["theta"]}
        if m["family"] == "gemma3_text":
            config["rope_parameters"] = {"full_attention": config["rope_parameters"]}
        if m["family"] == "olmo3":
            config["rope_parameters"] = dict.fromkeys(("full_attention", "sliding_attention"), config["rope_parameters"])
        return config
    # From OLMo 3's rope_theta transformers 5.19 takes only the base of full layers; published files have its default.
    config["rope_theta"] = 500000.0 if m["family"] == "olmo3" else m["theta"]
    if m["rope"] != "default":
        config["rope_scaling"] = rope_settings(m)
    if m["family"] == "phi3":
        config["original_max_position_embeddings"] = m["short_length"] if m["rope"] == "longrope" else m["positions"]
    return config


def gpt2_config(m):
    name = "GPT2ForSequenceClassification" if m["head"] == "classify" else "GPT2LMHeadModel"
    return {"architectures": [name], "model_type": "gpt2", "n_positions": m["positions"], "n_embd": m["hidden"],
            "n_layer": m["layers"], "n_head": m["heads"], "n_inner": m["inter"],
            "activation_function": m["activation"] or "gelu_new", "embd_pdrop": m["dropout"], "attn_pdrop": m["dropout"],
            "resid_pdrop": m["dropout"], "layer_norm_epsilon": 1e-5, "tie_word_embeddings": m["tied"],
            "scale_attn_weights": not m["unscaled"], "scale_attn_by_inverse_layer_idx": m["scale_by_layer"]} | classes_of(m)


def bert_config(m):
    config = {"model_type": "bert", "hidden_size": m["hidden"], "num_hidden_layers": m["layers"],
              "num_attention_heads": m["heads"], "intermediate_size": m["inter"], "hidden_act": m["activation"] or "gelu",
              "max_position_embeddings": m["positions"], "type_vocab_size": m["token_types"], "layer_norm_eps": 1e-12,
              "hidden_dropout_prob": m["dropout"], "attention_probs_dropout_prob": m["dropout"],
              "tie_word_embeddings": m["tied"]}
    config["architectures"] = ["ImdbBert" if m["family"] == "imdb_bert" else class_of(m)]
    if m["family"] in ("imdb_bert", "roberta"):
        config["model_type"] = m["family"]
    if m["family"] == "roberta":  # positions begin after the pad id
        config["max_position_embeddings"] += first_position(m)
    if m["family"] == "imdb_bert":
        return config | classes_of({**m, "head": "classify"})
    return config | classes_of(m)


def class_of(m):
    heads = {"mlm": "ForMaskedLM", "classify": "ForSequenceClassification", "pretraining": "ForPreTraining", "trunk": "Model"}
    return ENCODERS[m["family"]] + heads[m["head"]]


def first_position(m):
    """The row of RoBERTa's table of positions that the first token has."""
    return (m["pad_id"] if 0 <= m["pad_id"] < m["vocab"] else 1) + 1


def distilbert_config(m):
    config = {"model_type": "distilbert", "architectures": [class_of(m)], "dim": m["hidden"], "n_layers": m["layers"],
              "n_heads": m["heads"], "hidden_dim": m["inter"], "activation": m["activation"] or "gelu",
              "max_position_embeddings": m["positions"], "dropout": m["dropout"], "attention_dropout": m["dropout"],
              "seq_classif_dropout": m["dropout"], "tie_word_embeddings": m["tied"]}
    return config | classes_of(m)


def config_of(m):
    makers = {"gpt2": gpt2_config, "bert": bert_config, "roberta": bert_config, "imdb_bert": bert_config,
              "distilbert": distilbert_config}
    config = makers.get(m["family"], decoder_config)(m)
    config["vocab_size"] = m["vocab"]
    config["initializer_range"] = 0.1
    if m["source"] == "folder":
        config["torch_dtype"] = {"fp32": "float32", "fp64": "float64", "bf16": "bfloat16", "fp16": "float16"}[m["file_dtype"]]
    for key in ("pad", "eos"):
        if 0 <= m[f"{key}_id"] < m["vocab"]:
            config[f"{key}_token_id"] = m[f"{key}_id"]
    return config


def has_experts(m, layer):
    return m["family"] == "mixtral" or (m["family"] == "qwen3_moe" and (layer > 0 or m["layers"] == 1))


def expert_shapes(m, at):
    d, i, is_mixtral = m["hidden"], m["inter"], m["family"] == "mixtral"
    at += "block_sparse_moe." if is_mixtral else "mlp."
    yield at + "gate.weight", [m["experts"], d]
    gate, up, down = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    for e in range(m["experts"]):
        for name, shape in ((gate, [i, d]), (up, [i, d]), (down, [d, i])):
            yield f"{at}experts.{e}.{name}.weight", shape


def decoder_shapes(m):
    d, i, q, kv = m["hidden"], m["inter"], m["heads"] * m["head_dim"], m["kv_heads"] * m["head_dim"]
    fused = m["family"] == "phi3"
    columns = {"qkv": q + 2 * kv} if fused else {"q": q, "k": kv, "v": kv}
    yield "model.embed_tokens.weight", [m["vocab"], d]
    for n in range(m["layers"]):
        at = f"model.layers.{n}."
        yield at + ("post_feedforward_layernorm" if m["family"] in OLMO else "input_layernorm") + ".weight", [d]
        yield at + "post_attention_layernorm.weight", [d]
        if m["family"] in GEMMA:
            yield at + "pre_feedforward_layernorm.weight", [d]
            yield at + "post_feedforward_layernorm.weight", [d]
        if m["family"] in ("qwen3", "qwen3_moe", *OLMO, "gemma3_text"):
            each = m["family"] not in OLMO
            yield at + "self_attn.q_norm.weight", [m["head_dim"] if each else q]
            yield at + "self_attn.k_norm.weight", [m["head_dim"] if each else kv]
        for name, rows in columns.items():
            yield f"{at}self_attn.{name}_proj.weight", [rows, d]
            if has_biases(m, "qkv"):
                yield f"{at}self_attn.{name}_proj.bias", [rows]
        yield f"{at}self_attn.o_proj.weight", [d, q]
        if has_biases(m, "o"):
            yield f"{at}self_attn.o_proj.bias", [d]
        if has_experts(m, n):
            yield from expert_shapes(m, at)
            continue
        for name, rows, width in ([("gate_up", 2 * i, d)] if fused else [("gate", i, d), ("up", i, d)]) + [("down", d, i)]:
            yield f"{at}mlp.{name}_proj.weight", [rows, width]
            if has_biases(m, "mlp"):
                yield f"{at}mlp.{name}_proj.bias", [rows]
    yield "model.norm.weight", [d]
    yield from decoder_head_shapes(m)


def decoder_head_shapes(m):
    if m["head"] == "classify":
        yield "score.weight", [m["classes"], m["hidden"]]
    elif not m["tied"]:
        yield "lm_head.weight", [m["vocab"], m["hidden"]]


def with_bias(name, shape, width=None):
    yield name + ".weight", shape
    yield name + ".bias", [width or shape[0]]


def gpt2_shapes(m):
    d, i = m["hidden"], m["inter"]
    yield "transformer.wte.weight", [m["vocab"], d]
    yield "transformer.wpe.weight", [m["positions"], d]
    for n in range(m["layers"]):
        at = f"transformer.h.{n}."
        for norm in ("ln_1", "ln_2"):
            yield from with_bias(at + norm, [d])
        for name, shape in (("attn.c_attn", [d, 3 * d]), ("attn.c_proj", [d, d]), ("mlp.c_fc", [d, i]),
                            ("mlp.c_proj", [i, d])):
            yield from with_bias(at + name, shape, shape[1])
    yield from with_bias("transformer.ln_f", [d])
    yield from decoder_head_shapes(m)


def bert_shapes(m):
    """The tensors of BERT and RoBERTa."""
    d, i = m["hidden"], m["inter"]
    is_bert = m["family"] == "bert"
    trunk = "" if m["head"] == "trunk" else m["family"] + "."
    positions = m["positions"] + (0 if is_bert else first_position(m))
    for name, rows in (("word", m["vocab"]), ("position", positions), ("token_type", m["token_types"])):
        yield f"{trunk}embeddings.{name}_embeddings.weight", [rows, d]
    yield from with_bias(trunk + "embeddings.LayerNorm", [d])
    for n in range(m["layers"]):
        at = f"{trunk}encoder.layer.{n}."
        for name in ("query", "key", "value"):
            yield from with_bias(f"{at}attention.self.{name}", [d, d])
        for name, shape in (("attention.output.dense", [d, d]), ("attention.output.LayerNorm", [d]),
                            ("intermediate.dense", [i, d]), ("output.dense", [d, i]), ("output.LayerNorm", [d])):
            yield from with_bias(at + name, shape)
    if m["head"] == "trunk" or (is_bert and m["head"] != "mlm"):
        yield from with_bias(trunk + "pooler.dense", [d, d])
    yield from (bert_head_shapes if is_bert else roberta_head_shapes)(m)


def roberta_head_shapes(m):
    d = m["hidden"]
    if m["head"] == "mlm":
        yield f"lm_head.{'' if m['tied'] else 'decoder.'}bias", [m["vocab"]]
        yield from with_bias("lm_head.dense", [d, d])
        yield from with_bias("lm_head.layer_norm", [d])
        if not m["tied"]:
            yield "lm_head.decoder.weight", [m["vocab"], d]
    if m["head"] == "classify":
        yield from with_bias("classifier.dense", [d, d])
        yield from with_bias("classifier.out_proj", [m["classes"], d])


def bert_head_shapes(m):
    d = m["hidden"]
    if m["head"] in ("mlm", "pretraining"):
        yield f"cls.predictions.{'' if m['tied'] else 'decoder.'}bias", [m["vocab"]]
        yield from with_bias("cls.predictions.transform.dense", [d, d])
        yield from with_bias("cls.predictions.transform.LayerNorm", [d])
        if not m["tied"]:
            yield "cls.predictions.decoder.weight", [m["vocab"], d]
    if m["head"] == "pretraining":
        yield from with_bias("cls.seq_relationship", [2, d])
    if m["head"] == "classify":
        yield from with_bias("classifier", [m["classes"], d])


def distilbert_shapes(m):
    d, i = m["hidden"], m["inter"]
    trunk = "" if m["head"] == "trunk" else "distilbert."
    for name, rows in (("word", m["vocab"]), ("position", m["positions"])):
        yield f"{trunk}embeddings.{name}_embeddings.weight", [rows, d]
    yield from with_bias(trunk + "embeddings.LayerNorm", [d])
    for n in range(m["layers"]):
        for name, shape in (*((f"attention.{part}_lin", [d, d]) for part in ("q", "k", "v", "out")), ("sa_layer_norm", [d]),
                            ("ffn.lin1", [i, d]), ("ffn.lin2", [d, i]), ("output_layer_norm", [d])):
            yield from with_bias(f"{trunk}transformer.layer.{n}.{name}", shape)
    if m["head"] == "mlm":
        yield from with_bias("vocab_transform", [d, d])
        yield from with_bias("vocab_layer_norm", [d])
        yield "vocab_projector.bias", [m["vocab"]]
        if not m["tied"]:
            yield "vocab_projector.weight", [m["vocab"], d]
    if m["head"] == "classify":
        yield from with_bias("pre_classifier", [d, d])
        yield from with_bias("classifier", [m["classes"], d])


def nudged_values(values, seed, size):
    """The values times 1 + size or 1 - size, by random signs."""
    signs = random.Random(seed).randbytes(len(values))
    up, down = 1 + size, 1 - size
    return [v * (up if s & 1 else down) for v, s in zip(values, signs)]


def values_of(m, name, shape):
    """Random numbers that depend only on the seed, the name and the shape."""
    count = 1
    for size in shape:
        count *= size
    block = min(count, 1 << 16)  # a large tensor repeats a block of odd length, so that its rows differ
    block -= count > block
    rng = random.Random(zlib.crc32(f"{m['seed']} {name} {shape}".encode()))
    bits = memoryview(rng.randbytes(4 * block)).cast("I")
    is_norm = len(shape) == 1 and ("norm" in name.lower() or ".ln_" in name) and name.endswith("weight")
    if len(shape) == 1:
        middle, width = (1.0, 0.3) if is_norm and m["family"] not in GEMMA else (0.0, 0.3 if is_norm else 0.2)
    else:
        middle, width = 0.0, m["gain"] * (0.8 if "embed" in name or ".w" in name[-12:] else (3 / min(shape)) ** 0.5)
    scale = width / (1 << 31)
    values = [middle + scale * (b - (1 << 31)) for b in bits]
    if m["nudge"]:
        as_stored = tensor_file.decoded(tensor_file.encoded(values, m["file_dtype"]), tensor_file.NAMES[m["file_dtype"]])
        values = nudged_values(as_stored, f"{m['nudge']} {name}", m["nudge_size"])
    while len(values) < count:
        values += values[:count - len(values)]
    return values


def renamed(m, tensors):
    """The tensors under the names of older or other programs."""
    out = {}
    for name, entry in tensors.items():
        if m["names"] == "old":
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            if m["family"] == "gpt2":
                name = name.removeprefix("transformer.")
            if m["family"] in ENCODERS and m["head"] == "trunk":
                name = f"{m['family']}.{name}"
            name = name.replace("predictions.decoder.bias", "predictions.bias")
        out[name] = entry
    if m["names"] == "extra":
        if "cls.predictions.decoder.bias" in tensors:  # transformers ignores it if the decoder is untied
            out["cls.predictions.bias"] = ([m["vocab"]], "fp32", tensor_file.encoded([0.5] * m["vocab"], "fp32"))
        if m["family"] == "gpt2":
            out["transformer.h.0.attn.masked_bias"] = ([1], "fp32", tensor_file.encoded([-1e4], "fp32"))
        if m["family"] in DECODERS and m["tied"]:
            out["lm_head.weight"] = out["model.embed_tokens.weight"]
        if m["family"] == "gpt2" and m["tied"]:
            out["lm_head.weight"] = out["transformer.wte.weight"]
    return out


def write_tokenizer(folder, m):
    if m["tokenizer"] != "words":
        return
    words = SPECIAL + WORDS
    with open(os.path.join(folder, "vocab.txt"), "w", encoding="ascii") as file:
        file.write("".join(word + "\n" for word in words))
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="ascii") as file:
        json.dump({"tokenizer_class": "BertTokenizer", "do_lower_case": True, "unk_token": "[UNK]", "cls_token": "[CLS]",
                   "sep_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}, file)


def shapes_of(m):
    """(name, shape) of each tensor of a model with every key."""
    makers = {"gpt2": gpt2_shapes, "bert": bert_shapes, "roberta": bert_shapes, "distilbert": distilbert_shapes}
    return makers.get(m["family"], decoder_shapes)(m)


def write(folder, model):
    """Writes the model into the folder and returns the value for --model."""
    m = full(model)
    if m["source"] not in ("folder", "config"):
        return m["source"]
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "config.json")
    with open(path, "w", encoding="ascii") as file:
        json.dump(config_of(m), file)
    if m["source"] == "config":
        return path
    dtype, tensors = m["nudge_dtype"] or m["file_dtype"], {}
    for name, shape in shapes_of(m):
        tensors[name] = (shape, dtype, tensor_file.encoded(values_of(m, name, shape), dtype))
    tensor_file.write(os.path.join(folder, "model.safetensors"), renamed(m, tensors), {"format": "pt"})
    write_tokenizer(folder, m)
    return folder


def write_nudged(folder, checkpoint, number, size, dtype):
    """Writes a checkpoint's model with every weight changed by the relative `size`, and returns the folder."""
    shutil.copytree(checkpoint, folder, dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns("model.safetensors", "optimizer.safetensors", "manifest.json", "state.json"))
    tensors = {}
    for name, (shape, values) in tensor_file.read(os.path.join(checkpoint, "model.safetensors")).items():
        tensors[name] = (shape, dtype, tensor_file.encoded(nudged_values(values, f"{number} {name}", size), dtype))
    tensor_file.write(os.path.join(folder, "model.safetensors"), tensors, {"format": "pt"})
    return folder
