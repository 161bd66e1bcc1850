// NxD's pipeline API in C++: a Llama in four stages on two pipeline x two data-parallel ranks.
// It runs on four rank threads; under `cleave launch -n 4 -- build/examples/llama_pipeline` on four
// processes. The README.md in this folder shows a run.
#include <cstdio>

#include <ATen/ATen.h>

#include "cleave/compat/nxd.h"
#include "cleave/compat/nxd_pipeline.h"
#include "cleave/mesh/job.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/optim/optimizer.h"
#include "cleave/parallel/plan.h"

using namespace cleave;  // NOLINT(google-build-using-namespace)

Tensor loss_of(const DTensor& logits, const nxd::PipelineInputs& inputs) {
  return cross_entropy(logits, next_token_labels(inputs.at("labels"))).local();
}

bool is_block(const Layer& layer) {
  return matches("model.layers.*", layer.path());
}

/// This data-parallel rank's half of eight sequences that count up from different numbers.
nxd::PipelineInputs batch_of(int64_t step) {
  const Tensor starts = at::arange(8).mul(31).add(step).unsqueeze(-1);
  const Tensor ids = (starts + at::arange(32)).remainder(257);
  const int64_t rank = nxd::get_data_parallel_rank();
  const Tensor own = ids.chunk(nxd::get_data_parallel_size(), 0)[static_cast<size_t>(rank)];
  return {{"input_ids", own}, {"labels", own}};
}

void train(World& world) {
  nxd::initialize_model_parallel(world, {.pipeline_model_parallel_size = 2});
  const auto llama = make_model(preset_config("llama-tiny", 257));
  nxd::NxDPPModel model(*llama, llama->sequence(),
                        {.transformer_layer_cls = &is_block,
                         .num_microbatches = 4,
                         .virtual_pipeline_size = 2,
                         .output_loss_value_spec = &loss_of,
                         .broadcast_and_average_loss = true,
                         .input_names = {"input_ids", "labels"},
                         .trace_file_path = "pipeline_trace.json",
                         .use_zero1_optimizer = true,
                         .auto_partition = true});
  int64_t held = 0;
  for (const auto& [name, parameter] : model.local_named_parameters()) held += parameter->numel();
  std::printf("rank %d: %zu modules, %lld weights\n", world.rank(),
              model.local_named_modules().size(), static_cast<long long>(held));
  Optimizer optimizer(model.local_parameters(), {});
  for (int64_t step = 0; step < 20; ++step) {
    const double loss = model.run_train(batch_of(step))[0];
    optimizer.step(2e-3);
    optimizer.zero_grad();
    if (world.rank() == 0 && (step + 1) % 5 == 0) {
      std::printf("step %lld  loss %.4f\n", static_cast<long long>(step + 1), loss);
    }
  }
  const double loss = model.run_eval(batch_of(100))[0];
  if (world.rank() == 0) std::printf("eval  loss %.4f\n", loss);
  nxd::destroy_model_parallel();
}

int main() {
  run_job(4, train);
}
