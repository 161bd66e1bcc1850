#include <ATen/CPUGeneratorImpl.h>

#include "classifier.h"

namespace image_classifier {
namespace {

// 32 images and the numbers of their patterns.
struct Images {
  Tensor patches, labels;  // [32, N, P], [32]
};

Images images_of(int step) {
  const at::Generator fixed = at::detail::createCPUGenerator(1);
  const at::Generator random = at::detail::createCPUGenerator(static_cast<uint64_t>(step) + 2);
  const Tensor patterns = at::randn({10, kSide, kSide}, fixed, at::kDouble);
  const Tensor labels = at::randint(0, 10, {32}, random, at::kLong);
  const Tensor images =
      patterns.index_select(0, labels) + at::randn({32, kSide, kSide}, random, at::kDouble);
  // [B, rows, columns] -> [B, patches, pixels of a patch]
  const Tensor tiles = images.unfold(1, kPatch, kPatch).unfold(2, kPatch, kPatch);
  return {.patches = tiles.flatten(3).flatten(1, 2), .labels = labels};
}

}  // namespace

Result train(World& world, ParallelConfig layout, int num_steps) {
  Classifier model(Json::parse(
      R"({"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2})", "config.json"));
  layout.plan = model.plan(layout.sequence_parallel);
  const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
  const ParallelAxes axes{.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]};
  const Parallelized p = parallelize(model, model.sequence(), axes, layout);
  materialize(model, {.seed = 1, .dtype = layout.leaf_type()});
  p.gradients->refresh_weights();  // the bf16 weights, if the compute type is bf16
  // This data-parallel rank's part in micro-batches of 8.
  const auto own = [&](const Tensor& t) {
    return t.chunk(layout.dp, 0)[static_cast<size_t>(axes.dp.rank())].split(8);
  };
  const auto batches_of = [&](const Images& images) {
    std::vector<MicroBatch> batches;
    for (const Tensor& part : own(images.patches)) {
      batches.push_back({.input = DTensor(part, axes.tp, Replicate{})});
    }
    return batches;
  };
  const auto sum_of = [&](const std::vector<double>& parts) {
    return axes.dp.all_reduce(at::tensor(parts).sum(), "sum").item<double>();
  };
  Result result;
  for (int step = 0; step < num_steps; ++step) {
    const Images images = images_of(step);
    const std::vector<MicroBatch> batches = batches_of(images);
    p.gradients->begin(batches.size());
    result.losses.push_back(
        sum_of(p.pipeline->run_train(batches, [&](const DTensor& logits, size_t i) {
          return cross_entropy(logits, own(images.labels)[i], {.valid_tokens = 32}).local();
        })));
    p.gradients->complete();
    clip_grad_norm(model.parameters(), 1.0);
    p.optimizer->step(3e-3);
    p.optimizer->zero_grad();
  }
  const Images unseen = images_of(num_steps);
  const auto num_right = [&](const DTensor& logits, size_t i) {
    return logits.local().argmax(-1).eq(own(unseen.labels)[i]).sum();
  };
  result.accuracy = sum_of(p.pipeline->run_eval(batches_of(unseen), num_right)) / 32;
  return result;
}

}  // namespace image_classifier
