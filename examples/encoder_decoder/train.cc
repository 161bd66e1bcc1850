#include <ATen/CPUGeneratorImpl.h>

#include "t5.h"

namespace encoder_decoder {

std::vector<double> train(World& world, ParallelConfig layout, uint64_t num_steps) {
  T5 model(Json::parse(R"({"vocab_size": 8, "hidden_size": 32, "num_attention_heads": 4,
                           "num_hidden_layers": 2})",
                       ""));
  layout.plan = model.plan(layout.sequence_parallel);
  const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
  const ParallelAxes axes{.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]};
  const Parallelized p = parallelize(model, model.sequence(), axes, layout);
  materialize(model, {.seed = 1, .dtype = layout.leaf_type()});
  p.gradients->refresh_weights();  // the bf16 weights, if the compute type is bf16
  std::vector<double> losses;
  for (uint64_t step = 0; step < num_steps; ++step) {
    // 32 sequences of 4 ids from 2 to 7; the decoder reads its own answer one place behind.
    const Tensor all = at::randint(2, 8, {32, 4}, at::detail::createCPUGenerator(step), at::kLong);
    const Tensor ids = all.chunk(layout.dp, 0)[static_cast<size_t>(axes.dp.rank())];
    const Tensor answers = ids.flip(1);
    const Tensor behind = at::constant_pad_nd(answers.slice(1, 0, 3), {1, 0});
    std::vector<MicroBatch> batches;
    for (int64_t b = 0; b < ids.size(0); b += 8) {
      const DTensor decoder_ids(behind.slice(0, b, b + 8), axes.tp, Replicate{});
      batches.push_back({.input = DTensor(ids.slice(0, b, b + 8), axes.tp, Replicate{})});
      batches.back().context.values = NamedValues().with("decoder_ids", decoder_ids);
      batches.back().context.recompute_attention = layout.recompute == RecomputeKind::kSelective;
    }
    p.gradients->begin(batches.size());
    const auto parts = p.pipeline->run_train(batches, [&](const DTensor& logits, size_t i) {
      return cross_entropy(logits, answers.split(8)[i], {.valid_tokens = all.numel()}).local();
    });
    p.gradients->complete();
    clip_grad_norm(model.parameters(), 1.0);
    p.optimizer->step(1e-2);
    p.optimizer->zero_grad();
    losses.push_back(axes.dp.all_reduce(at::tensor(parts).sum(), "loss").item<double>());
  }
  return losses;
}

}  // namespace encoder_decoder
