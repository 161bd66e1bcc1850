// PyTorch's tensor-parallel tutorial in C++: a device mesh, a plan for a Llama, a train step.
// Two rank threads here; under `cleave launch -n 2 -- build/examples/tensor_parallel` two
// processes.
#include <cstdio>

#include <ATen/ATen.h>

#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"

using namespace cleave;

// The tutorial's names, and Hugging Face's, both mean the same modules.
const Plan kPlan = {
    {"tok_embeddings", Rowwise{}},
    {"layers.*.attention.{wq,wk,wv}", Colwise{}},
    {"layers.*.attention.wo", Rowwise{}},
    {"layers.*.feed_forward.{w1,w3}", Colwise{}},
    {"layers.*.feed_forward.w2", Rowwise{}},
    {"output", Colwise{.output = Shard{-1}}},  // the loss reads sharded logits
};

void train(World& world) {
  const Mesh mesh = Mesh::build(world, {{"dp", 1}, {"tp", world.size()}});
  const Axis& tp = mesh["tp"];

  auto model = make_model(preset_config("llama-tiny", 257));
  parallelize_module(*model, tp, kPlan);
  materialize(*model, {.seed = 1});
  const Parameters parameters = model->parameters();
  Optimizer optimizer(parameters, {});

  const Tensor ids = at::arange(2 * 64).remainder(97).view({2, 64});  // the same on every rank
  for (int step = 0; step < 5; ++step) {
    const DTensor logits = (*model)(DTensor(ids, tp, Replicate{}), Context());
    const DTensor loss = cross_entropy(logits, next_token_labels(ids));
    loss.local().backward();
    finish_gradients(parameters, tp);
    clip_gradients(parameters, gradient_norm(parameters, tp).value, 1.0);
    optimizer.step(1e-3);
    optimizer.zero_grad();
    if (world.rank() == 0)
      std::printf("step %d  loss %.4f\n", step + 1, loss.local().item<float>());
  }
}

int main() {
  const int launched = launched_world_size();
  run_job({.num_ranks = launched > 0 ? launched : 2}, train);
}
