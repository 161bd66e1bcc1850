// PyTorch's tensor-parallel tutorial in C++: a Llama on a 2-D device mesh, tensor and sequence
// parallel on one axis, fully sharded on the other. It runs on four rank threads; under
// `cleave launch -n 4 -- build/examples/tensor_parallel` on four processes.
#include <cstdio>

#include "cleave/cleave.h"

using namespace cleave;  // NOLINT(google-build-using-namespace)

// Module names may be the tutorial's or Hugging Face's. Between attention and feed-forward each
// rank has some positions of every sequence; the loss reads sharded logits.
const Plan kPlan = {
    {"tok_embeddings", Rowwise{.input = Replicate{}, .output = Shard{1}}},
    {"layers.*.attention_norm", SequenceParallel{}},
    {"layers.*.attention", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
    {"layers.*.attention.{wq,wk,wv}", Colwise{}},
    {"layers.*.attention.wo", Rowwise{.output = Shard{1}}},
    {"layers.*.ffn_norm", SequenceParallel{}},
    {"layers.*.feed_forward", PrepareModuleInput{.input = Shard{1}, .desired = Replicate{}}},
    {"layers.*.feed_forward.{w1,w3}", Colwise{}},
    {"layers.*.feed_forward.w2", Rowwise{.output = Shard{1}}},
    {"norm", SequenceParallel{}},
    {"output", Colwise{.input = Shard{1}, .output = Shard{-1}}},
};

void train(World& world) {
  const Mesh mesh = Mesh::build(world, {{"dp", world.size() / 2}, {"tp", 2}});
  const Axis& dp = mesh["dp"];
  const Axis& tp = mesh["tp"];

  auto model = make_model(preset_config("llama-tiny", 257));
  parallelize_module(*model, tp, kPlan);
  for (Layer* layer : model->sequence()) fully_shard(*layer, dp);
  materialize(*model, {.seed = 1});
  const Parameters parameters = model->parameters();
  Optimizer optimizer(parameters, {});

  // Each data-parallel rank has two sequences; all ranks of a tp axis have the same ones.
  const Tensor ids = at::arange(4 * 63).remainder(97).view({4, 63}).chunk(dp.size(), 0)[dp.rank()];
  const int64_t num_labels = dp.size() * ids.size(0) * (ids.size(1) - 1);
  for (int step = 0; step < 5; ++step) {
    const DTensor logits = (*model)(DTensor(ids, tp, Replicate{}), Context());
    const Tensor loss =
        cross_entropy(logits, next_token_labels(ids), {.valid_tokens = num_labels}).local();
    loss.backward();  // also reduce-scatters the gradients over dp
    optimizer.step(1e-3);
    optimizer.zero_grad();
    const Tensor all = dp.all_reduce(loss.detach(), "loss");
    if (world.rank() == 0) std::printf("step %d  loss %.4f\n", step + 1, all.item<float>());
  }
}

int main() {
  run_job(4, train);
}
