// A training loop of your own for your own model, on eight ranks: a pipeline of two stages, tensor
// parallelism, data parallelism with ZeRO-1, and bf16 with fp32 master weights.
#include "cleave/cleave.h"

using namespace cleave;  // NOLINT(google-build-using-namespace)

class Block : public Layer {
 public:
  explicit Block(int64_t d)
      : norm_(d, 1e-5),
        attention_({.hidden = d,
                    .num_heads = 4,
                    .num_kv_heads = 2,
                    .head_dim = d / 4,
                    .rotary = RotaryOptions{.head_dim = d / 4}}),
        mlp_norm_(d, 1e-5),
        mlp_({.hidden = d, .intermediate = 3 * d}) {
    add("norm", norm_);
    add("attention", attention_);
    add("mlp_norm", mlp_norm_);
    add("mlp", mlp_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& c) override {
    const DTensor h = x + attention_(norm_(x, c), c);
    return h + mlp_(mlp_norm_(h, c), c);
  }

 private:
  RmsNorm norm_;
  Attention attention_;
  RmsNorm mlp_norm_;
  Mlp mlp_;
};

class Decoder : public Model {
 public:
  explicit Decoder(const Json& config)
      : Model(config),
        embed_({.num_embeddings = facts().vocab_size, .embedding_dim = facts().hidden}),
        head_({.in_features = facts().hidden, .out_features = facts().vocab_size, .bias = false}) {
    add("embed", embed_);
    for (int64_t i = 0; i < facts().num_layers; ++i) {
      blocks_.push_back(std::make_unique<Block>(facts().hidden));
      add("blocks." + std::to_string(i), *blocks_.back());
    }
    add("head", head_);
  }

 private:
  Embedding embed_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Linear head_;
};

void train(World& world) {
  Decoder model(
      Json::parse(R"({"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 4})", ""));
  model.name_tree();
  const ParallelConfig config{.pp = 2,
                              .dp = 2,
                              .tp = 2,
                              .plan = model.plan(),
                              .sharding = DataSharding::kZero1,
                              .compute_type = at::kBFloat16};
  const Mesh mesh = Mesh::build(world, {{"pp", config.pp}, {"dp", config.dp}, {"tp", config.tp}});
  const ParallelAxes axes{.pp = mesh["pp"], .dp = mesh["dp"], .tp = mesh["tp"]};
  const Parallelized p = parallelize(model, model.sequence(), axes, config);
  materialize(model, {.seed = 1});
  p.gradients->refresh_weights();  // the bf16 weights, from the fp32 masters

  // Each data-parallel rank has four sequences, which pass the pipeline one by one.
  const Tensor ids = at::arange(8 * 24).remainder(97).view({8, 24}).chunk(2, 0)[axes.dp.rank()];
  const int64_t num_labels = 8 * 23;
  std::vector<MicroBatch> batches;
  for (const Tensor& one : ids.split(1)) batches.push_back({DTensor(one, axes.tp, Replicate{})});
  for (int step = 0; step < 30; ++step) {
    p.gradients->begin(batches.size());
    const auto losses = p.pipeline->run_train(batches, [&](const DTensor& logits, size_t i) {
      const Tensor labels = next_token_labels(ids.split(1)[i]);
      return cross_entropy(logits, labels, {.valid_tokens = num_labels}).local();
    });
    p.gradients->complete();
    const GradientNorm norm = clip_grad_norm(model.parameters(), 1.0);
    p.optimizer->step(3e-3);
    p.optimizer->zero_grad();
    double sum = 0;
    for (const double loss : losses) sum += loss;
    const Tensor all = axes.dp.all_reduce(at::scalar_tensor(sum), "loss");
    if (world.rank() == 0 && step % 10 == 9) {
      log_info("step ", step + 1, "  loss ", all.item<float>(), "  gradient norm ", norm.value);
    }
  }
}

int main() {
  run_job(8, train);
}
