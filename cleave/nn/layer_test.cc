#include "cleave/nn/layer.h"

#include <atomic>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/embedding.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/plan.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::layer_test {
namespace {

using test::on_ranks;
using test::thrown_by;

/// Layers first, norm and second in sequence; two of them have aliases.
class Pair : public Layer {
 public:
  Pair()
      : first_({.in_features = 4, .out_features = 4}),
        norm_(4, 1e-5),
        second_({.in_features = 4, .out_features = 4}) {
    add("first", first_, "w1");
    add("norm", norm_);
    add("second", second_, "w2");
  }

 protected:
  DTensor forward(const DTensor& x, const Context& c) override {
    return second_(norm_(first_(x, c), c), c);
  }

 private:
  Linear first_;
  RmsNorm norm_;
  Linear second_;
};

class Tree : public Layer {
 public:
  Tree() {
    add("model", pair_, "");
    add("head", head_, "output");
    head_.tie_weight(embed_.weight());
    add("embed", embed_);
  }

 protected:
  DTensor forward(const DTensor& x, const Context& c) override { return head_(pair_(x, c), c); }

 private:
  Pair pair_;
  Linear head_{{.in_features = 4, .out_features = 6, .bias = false}};
  Embedding embed_{{.num_embeddings = 6, .embedding_dim = 4}};
};

// Their gradients would add up in one place. Evaluation with shared weights is allowed.
TEST(Layer, OfTwoRankThreads_IsRefusedInTraining) {
  Pair shared;
  materialize(shared);
  const auto call = [](Layer& layer) {
    return layer(DTensor(at::ones({1, 4}), Axis(), Replicate{}), Context());
  };
  std::atomic<int> refused = 0;
  test::on_world(2, [&](World& world) {
    const Axis both = Mesh::build(world, {{"both", 2}})["both"];
    {
      const at::NoGradGuard no_grad;
      (void)call(shared);
    }
    both.barrier("evaluated");
    try {
      (void)call(shared);
    } catch (const Error& error) {
      ++refused;
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_NE(std::string(error.what()).find("construct the model in the function"),
                std::string::npos)
          << error.what();
    }
    both.barrier("trained");
    Pair own;
    materialize(own);
    (void)call(own);
  });
  EXPECT_EQ(refused, 1);
  for (int run = 0; run < 2; ++run) {  // one rank after another
    test::on_world(1, [&](World& /*world*/) { (void)call(shared); });
  }
}

TEST(LayerTree, Paths_HaveAliasesAtEveryLevel) {
  Tree tree;
  tree.name_tree();
  tree.name_tree();  // does nothing
  std::vector<std::vector<std::string>> paths;
  tree.walk([&](Layer& layer) { paths.push_back(layer.paths()); });
  const std::vector<std::vector<std::string>> want = {{""},
                                                      {"model", ""},
                                                      {"model.first", "first", "model.w1", "w1"},
                                                      {"model.norm", "norm"},
                                                      {"model.second", "second", "model.w2", "w2"},
                                                      {"head", "output"},
                                                      {"embed"}};
  EXPECT_EQ(paths, want);
}

// Without a name, the new layers would have one stream of initial values and no place in a plan.
TEST(LayerTree, LayersAddedAfterTheirTreeIsNamed_GetNamesToo) {
  LayerGroup root;
  Linear a({.in_features = 4, .out_features = 4}), b({.in_features = 4, .out_features = 4}),
      c({.in_features = 4, .out_features = 4});
  root.add("a", a);
  root.name_tree();
  root.add("b", b);
  root.add("c", c);
  materialize(root, {.seed = 1});
  EXPECT_EQ(b.path(), "b");
  EXPECT_EQ(c.weight()->name(), "c.weight");
  EXPECT_FALSE(at::equal(b.weight()->leaf(), c.weight()->leaf()));
}

TEST(LayerTree, Parameters_AreListedOnceUnderTheirFirstName) {
  Tree tree;
  tree.name_tree();
  std::vector<std::string> names;
  for (const auto& p : tree.parameters()) names.push_back(p->name());
  EXPECT_EQ(names,
            (std::vector<std::string>{"model.first.weight", "model.first.bias", "model.norm.weight",
                                      "model.second.weight", "model.second.bias", "head.weight"}));
}

class Note : public Wrap {
 public:
  Note(std::string name, std::vector<std::string>& log) : name_(std::move(name)), log_(log) {}
  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    log_.push_back(name_ + " in " + layer.path());
    const DTensor y = next(x.with(x.local() + 1), context);
    log_.push_back(name_ + " out");
    return y;
  }

 private:
  std::string name_;
  std::vector<std::string>& log_;
};

class Double : public Layer {
 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    return x.with(2 * x.local());
  }
};

TEST(Layer, Wraps_AreNestedLastOneOutermost) {
  std::vector<std::string> log;
  Double layer;
  layer.name_tree();
  layer.attach(std::make_unique<Note>("inner", log));
  layer.attach(std::make_unique<Note>("outer", log));
  const DTensor y = layer(DTensor(at::ones({1}), Axis(), Replicate{}), {});
  EXPECT_EQ(y.local().item<float>(), 2 * (1 + 1 + 1));
  EXPECT_EQ(log, (std::vector<std::string>{"outer in ", "inner in ", "inner out", "outer out"}));
}

/// The error of a model's first forward on two ranks under a plan.
std::string first_step(const std::function<std::unique_ptr<Layer>()>& make, const Plan& plan) {
  const Error error = thrown_by([&] {
    on_ranks(2, [&](const Axis& axis) {
      const auto model = make();
      parallelize_module(*model, axis, plan);
      materialize(*model);
      (*model)(DTensor(at::zeros({1, 2, 4}), axis, Replicate{}), {});
    });
  });
  EXPECT_EQ(error.code(), Code::kShape);
  return error.what();
}

TEST(ModuleBoundary, MissingPlanEntry_NamesTheLayerAndTheMakerOfItsInput) {
  const auto mlp = [] { return std::make_unique<Mlp>(MlpOptions{.hidden = 4, .intermediate = 6}); };
  EXPECT_EQ(first_step([] { return std::make_unique<Pair>(); }, {{"first", Colwise{}}}),
            "norm: a norm needs whole rows; it got Shard(2) made by first; give that module the "
            "`output` Replicate or Shard(1) in the plan");
  EXPECT_EQ(
      first_step(mlp, {{"{gate,up}_proj", Colwise{}}}),
      "down_proj is not sharded and got Shard(2) made by the model; give it a style in the plan");
  EXPECT_EQ(first_step(mlp, {{"up_proj", Colwise{}}, {"down_proj", Rowwise{}}}),
            "cannot combine Replicate (made by gate_proj) and Shard(2) (made by up_proj); give "
            "both the same placement in the plan");
}

TEST(ModuleBoundary, ImpossibleConversion_NamesBothSides) {
  on_ranks(2, [](const Axis& axis) {
    Pair pair;
    pair.name_tree();
    pair.set_output_layout(Partial{});
    parallelize_module(pair, axis, {});
    materialize(pair);
    const DTensor x(at::zeros({1, 2, 4}), axis, Replicate{});
    const Error error = thrown_by([&] { pair(x, {}); });
    EXPECT_STREQ(error.what(), "cannot convert Replicate to Partial (value made by second)");

    Tree tree;
    parallelize_module(tree, axis, {});
    materialize(tree);
    tree.walk([](Layer& layer) {
      if (layer.path() == "head") layer.set_input_layout(Replicate{});
    });
    const DTensor fanout(at::zeros({1, 2, 4}), axis, Fanout{});
    const Error boundary = thrown_by([&] { tree(fanout, {}); });
    EXPECT_EQ(boundary.code(), Code::kShape);
    EXPECT_STREQ(boundary.what(), "head: cannot convert Fanout to Replicate (value made by model)");
  });
}

TEST(ModuleBoundary, RowwiseBiasWithPartialOutput_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    for (const bool bias : {true, false}) {
      Linear linear({.in_features = 4, .out_features = 4, .bias = bias});
      parallelize_module(linear, axis, {{"", Rowwise{.output = Partial{}}}});
      materialize(linear);
      const DTensor x(at::ones({2, 4}), axis, Replicate{});
      if (!bias) {
        EXPECT_TRUE(linear(x, {}).placement().is_partial());
        continue;
      }
      const Error error = thrown_by([&] { linear(x, {}); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_NE(std::string(error.what()).find("bias"), std::string::npos);
    }
  });
}

TEST(ModuleBoundary, ParameterInReplicatedAndInShardedWork_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    RmsNorm norm(4, 1e-5);
    parallelize_module(norm, axis, {});
    materialize(norm);
    norm(DTensor(at::ones({1, 2, 4}), axis, Replicate{}), {});
    const DTensor on_tokens = DTensor::distribute(at::ones({1, 2, 4}), axis, Shard{1});
    const Error error = thrown_by([&] { norm(on_tokens, {}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_TRUE(std::string(error.what()).starts_with("weight is used both on replicated"));
  });
}

TEST(ModuleBoundary, WrongWidthsAndIds_NameTheLayer) {
  Pair pair;
  materialize(pair);
  const Error width = thrown_by([&] { pair(DTensor(at::zeros({2, 5}), Axis(), Replicate{}), {}); });
  EXPECT_EQ(width.code(), Code::kShape);
  EXPECT_STREQ(width.what(), "first: input of [2, 5] has width 5; in_features=4");
  RmsNorm norm(4, 1e-5);
  materialize(norm);
  EXPECT_EQ(thrown_by([&] {
              norm(DTensor(at::zeros({2, 5}), Axis(), Replicate{}), {});
            }).code(),
            Code::kShape);
  Embedding embedding({.num_embeddings = 6, .embedding_dim = 4});
  materialize(embedding);
  for (const int64_t id : {6, -1}) {
    const DTensor ids(at::full({1, 2}, id, at::kLong), Axis(), Replicate{});
    const Error error = thrown_by([&] { embedding(ids, {}); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_NE(std::string(error.what()).find(str("id ", id, " is outside [0, 6)")),
              std::string::npos);
  }
}

/// Fails inside libtorch.
class Broken : public Layer {
 public:
  explicit Broken(bool out_of_memory) : out_of_memory_(out_of_memory) {}

 protected:
  DTensor forward(const DTensor& x, const Context& /*context*/) override {
    if (out_of_memory_) return x.with(at::empty({int64_t{1} << 50}));
    return x.with(x.local().matmul(at::zeros({7, 7})));
  }

 private:
  bool out_of_memory_;
};

class Outer : public Layer {
 public:
  explicit Outer(bool out_of_memory) : broken_(out_of_memory) { add("inner.broken", broken_); }

 protected:
  DTensor forward(const DTensor& x, const Context& c) override { return broken_(x, c); }

 private:
  Broken broken_;
};

TEST(ModuleBoundary, ErrorOfLibtorch_BecomesOneLineWithTheLayer) {
  for (const bool memory : {false, true}) {
    Outer outer(memory);
    outer.name_tree();
    const DTensor x(at::zeros({2, 5}), Axis(), Replicate{});
    const Error error = thrown_by([&] { outer(x, {}); });
    EXPECT_EQ(error.code(), memory ? Code::kMemory : Code::kShape) << error.what();
    const std::string what = error.what();
    EXPECT_TRUE(what.starts_with("inner.broken: ")) << what;
    EXPECT_EQ(what.find("frame #"), std::string::npos) << what;
  }
}

/// A layer in which libtorch reports that a GPU has failed.
class OnFailedDevice : public Layer {
 protected:
  DTensor forward(const DTensor& /*x*/, const Context& /*c*/) override {
    throw c10::AcceleratorError({__func__, __FILE__, __LINE__}, 700,
                                "CUDA error: an illegal memory access was encountered\nmore text");
  }
};

TEST(ModuleBoundary, FailedDevice_IsNoErrorOfTheLayerThatFindsIt) {
  OnFailedDevice layer;
  layer.name_tree();
  const Error error =
      thrown_by([&] { (void)layer(DTensor(at::ones({1}), Axis(), Replicate{}), Context()); });
  EXPECT_EQ(error.code(), Code::kBug);
  EXPECT_EQ(std::string(error.what()),
            "the device failed: CUDA error: an illegal memory access was encountered; to see in "
            "which operation, set CUDA_LAUNCH_BLOCKING=1");
}

TEST(ModuleBoundary, LayerWithoutMemory_NamesTheCallThatIsMissing) {
  Linear linear({.in_features = 4, .out_features = 4});
  linear.name_tree();
  const Error error = thrown_by([&] {
    linear(DTensor(at::zeros({2, 4}), Axis(), Replicate{}), {});
  });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("has no memory yet; call materialize()"),
            std::string::npos);
}

TEST(Layers, InvalidSizesAndNames_AreRefused) {
  EXPECT_EQ(thrown_by([] { Linear l({.in_features = 0, .out_features = 4}); }).code(),
            Code::kShape);
  EXPECT_EQ(thrown_by([] { Embedding e({.num_embeddings = 4, .embedding_dim = 0}); }).code(),
            Code::kShape);
  EXPECT_EQ(thrown_by([] { (void)activation_from_name("tanhh"); }).code(), Code::kFormat);
  EXPECT_EQ(activation_from_name("gelu_new"), Activation::kGeluTanh);
}

// Source: ACT2CLS of transformers 5.19. Its gelu_fast rounds sqrt(2 / pi) to 10 digits.
TEST(Layers, OtherNamesOfActivations_AreTheSameFunctions) {
  EXPECT_EQ(activation_from_name("swish"), Activation::kSilu);
  EXPECT_EQ(activation_from_name("gelu_python"), Activation::kGelu);
  for (const char* name : {"gelu_fast", "gelu_accurate", "gelu_python_tanh", "gelu_pytorch_tanh"}) {
    EXPECT_EQ(activation_from_name(name), Activation::kGeluTanh) << name;
  }
}

}  // namespace
}  // namespace cleave::layer_test
