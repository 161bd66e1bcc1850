"""Shards transformers' Llama, GPT-2 and BERT over a mesh with PyTorch's parallelize_module."""
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class FusedQkv(torch.nn.Module):
    """GPT-2's three projections in one call, each sharded by heads: sharding the fused weight would mix them."""

    def __init__(self, fused):
        super().__init__()
        width = fused.weight.shape[0]
        parts = zip(fused.weight.split(width, dim=1), fused.bias.split(width))
        self.q, self.k, self.v = (linear_of(weight, bias) for weight, bias in parts)

    def forward(self, x):
        return torch.cat([self.q(x), self.k(x), self.v(x)], dim=-1)


def linear_of(weight, bias):
    """A Linear with a Conv1D's weight [in, out] and bias [out]."""
    linear = torch.nn.Linear(weight.shape[0], weight.shape[1])
    linear.weight = torch.nn.Parameter(weight.detach().T.contiguous())
    linear.bias = torch.nn.Parameter(bias.detach().clone())
    return linear


def split_llama(model, mesh):
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel()})
    parallelize_module(model, mesh, {"model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
                                     "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})


def split_gpt2(model, mesh):
    for block in model.transformer.h:
        block.attn.c_attn = FusedQkv(block.attn.c_attn)
        block.attn.split_size //= mesh.size()
        for owner, name in ((block.attn, "c_proj"), (block.mlp, "c_fc"), (block.mlp, "c_proj")):
            setattr(owner, name, linear_of(getattr(owner, name).weight, getattr(owner, name).bias))
        parallelize_module(block, mesh, {
            "attn.c_attn.q": ColwiseParallel(), "attn.c_attn.k": ColwiseParallel(), "attn.c_attn.v": ColwiseParallel(),
            "attn.c_proj": RowwiseParallel(), "mlp.c_fc": ColwiseParallel(), "mlp.c_proj": RowwiseParallel()})
    parallelize_module(model, mesh, {"transformer.wte": RowwiseParallel(input_layouts=Replicate()),
                                     "lm_head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)})
    model.lm_head.weight = model.transformer.wte.weight


def split_bert(model, mesh):
    for layer in model.bert.encoder.layer:
        parallelize_module(layer, mesh, {
            "attention.self.query": ColwiseParallel(), "attention.self.key": ColwiseParallel(),
            "attention.self.value": ColwiseParallel(), "attention.output.dense": RowwiseParallel(),
            "intermediate.dense": ColwiseParallel(), "output.dense": RowwiseParallel()})
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"bert.embeddings.word_embeddings": RowwiseParallel(input_layouts=Replicate()),
                                     "cls.predictions.decoder": head})
    predictions = model.cls.predictions
    predictions.decoder.weight = model.bert.embeddings.word_embeddings.weight
    predictions.bias = predictions.decoder.bias


def split(model, family, mesh):
    """Shards in place: the parameters become DTensors of the mesh; tied weights stay tied."""
    {"llama": split_llama, "gpt2": split_gpt2, "bert": split_bert}[family](model, mesh)
