"""The benchmark models as transformers' configs: the sizes of `cleave bench`, random weights."""
import dataclasses
import os

# No access to the Hugging Face hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@dataclasses.dataclass(frozen=True)
class Shape:
    family: str  # llama, gpt2 or bert
    batch_size: int  # sequences of a training step
    seq_len: int  # tokens of each


SHAPES = {
    "llama-135m": Shape("llama", 4, 256),
    "llama-1.1b": Shape("llama", 4, 256),
    "gpt2-124m": Shape("gpt2", 4, 64),
    "bert-base": Shape("bert", 4, 128),
}

LLAMA_SIZES = {
    "llama-135m": {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
                   "num_key_value_heads": 12},
    "llama-1.1b": {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
                   "num_key_value_heads": 4},
}


def model_config(name, dropout=0.0):
    """The transformers config of a shape, with only the family's default weight tying."""
    import transformers

    if name in LLAMA_SIZES:
        return transformers.LlamaConfig(vocab_size=32000, max_position_embeddings=32768, rms_norm_eps=1e-5,
                                        tie_word_embeddings=False, attention_dropout=dropout, **LLAMA_SIZES[name])
    if name == "gpt2-124m":
        return transformers.GPT2Config(resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)
    if name == "bert-base":
        return transformers.BertConfig(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    raise SystemExit(f"shape '{name}' is unknown; expected one of {', '.join(SHAPES)}")


def make_model(name, dropout=0.0):
    """The model with random weights, fp32, seeded."""
    import torch
    import transformers

    kinds = {"llama": transformers.LlamaForCausalLM, "gpt2": transformers.GPT2LMHeadModel,
             "bert": transformers.BertForMaskedLM}
    torch.manual_seed(1)
    return kinds[SHAPES[name].family](model_config(name, dropout))
