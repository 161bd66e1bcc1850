// Your own model: layers and a registration. It is trained on 2 ranks, saved, loaded on 3, and
// compared layer by layer with one rank.
#include "cleave/cleave.h"

using namespace cleave;  // NOLINT(google-build-using-namespace)

// x + mlp(x). No code for ranks is needed.
class Block : public Layer {
 public:
  explicit Block(int64_t d) : mlp_({.hidden = d, .intermediate = 4 * d}) { add("mlp", mlp_); }

 protected:
  DTensor forward(const DTensor& x, const Context& c) override { return x + mlp_(x, c); }

 private:
  Mlp mlp_;
};

// Predicts the next character from the current one: embedding, block, head.
class Bigram : public Model {
 public:
  explicit Bigram(const Json& config)
      : Model(config),
        embed_({.num_embeddings = facts().vocab_size, .embedding_dim = facts().hidden}),
        block_(facts().hidden),
        head_({.in_features = facts().hidden, .out_features = facts().vocab_size, .bias = false}) {
    add("embed", embed_);
    add("block", block_);
    add("head", head_);
  }

 private:
  Embedding embed_;
  Block block_;
  Linear head_;
};

Tensor loss_of(Model& model, const Axis& tp) {
  const std::string text = "the rain in spain stays mainly in the plain. ";
  const Tensor ids = at::tensor(std::vector<int64_t>(text.begin(), text.end())).unsqueeze(0);
  const DTensor logits = model(DTensor(ids, tp, Replicate{}), Context());
  return cross_entropy(logits, next_token_labels(ids)).local();
}

int main() {
  register_model<Bigram>("bigram");
  const Json config = Json::parse(
      R"({"model_type": "bigram", "vocab_size": 128, "hidden_size": 24})", "config.json");
  const std::string folder = "own-model-saved";
  std::filesystem::remove_all(folder);
  run_ranks(2, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", 1}, {"tp", 2}});
    auto model = make_model(config);
    parallelize_module(*model, mesh["tp"], model->plan());
    materialize(*model);
    Optimizer optimizer(model->parameters(), {});
    for (int step = 0; step < 60; ++step) {
      const Tensor loss = loss_of(*model, mesh["tp"]);
      loss.backward();
      finish_gradients(model->parameters(), mesh["tp"]);
      optimizer.step(1e-2);
      optimizer.zero_grad();
      if (world.rank() == 0 && step % 20 == 0)
        log_info("step ", step, "  loss ", loss.item<float>());
    }
    save_checkpoint(folder, {.model = model.get()}, {mesh["tp"], mesh["tp"], mesh["dp"]});
  });
  run_ranks(3, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"tp", 3}});
    const ModelFolder saved = ModelFolder::open(folder);
    auto model = make_model(saved.config);
    parallelize_module(*model, mesh["tp"], model->plan());
    load_model(*model, saved, at::kFloat);
    const Tensor loss = loss_of(*model, mesh["tp"]);
    if (world.rank() == 0) log_info("loaded on 3 ranks  loss ", loss.item<float>());
  });
  return cleave_verify({.model = folder, .tp = 3});
}
