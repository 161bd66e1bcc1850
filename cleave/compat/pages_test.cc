// The C++ of docs/nxd.md and docs/notebook-s4.md, compiled and run; the last test compares this
// file with the pages, so that neither changes alone.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/notebook.h"
#include "cleave/compat/nxd_pipeline.h"
#include "cleave/mesh/job.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

// As in the blocks of docs/nxd.md.
using namespace cleave;  // NOLINT(google-build-using-namespace)

namespace {

// clang-format off
struct Classifier : LayerGroup {
  Classifier() {
    add("embed", embed);
    add("up", up);
    add("down", down);
  }
  Tensor operator()(const Tensor& ids) { return down(up(embed(ids)).tanh()).mean(1); }
  nxd::ParallelEmbedding embed{100, 16};
  nxd::ColumnParallelLinear up{16, 64, {.gather_output = false}};
  nxd::RowParallelLinear down{64, 2, {.input_is_parallel = true}};
};

/// ids [B, T] and labels [B] int64 of this data-parallel rank's sequences in a step.
std::pair<Tensor, Tensor> batch_of(int64_t step, int dp_rank);

void train(World& world) {  // the body of run_job({.num_ranks = 4}, &train)
  nxd::initialize_model_parallel(world, {.tensor_model_parallel_size = 2});
  Classifier model;
  nxd::move_model_to_device(model, at::kCPU, {.seed = 1});
  Optimizer optimizer(model.parameters(), {.weight_decay = 0.01});
  const LrSchedule schedule{.peak = 1e-3, .num_steps = 100};
  for (int64_t step = 0; step < 100; ++step) {
    const auto [ids, labels] = batch_of(step, nxd::get_data_parallel_rank());
    at::cross_entropy_loss(model(ids), labels).backward();
    nxd::clip_grad_norm(model.parameters(), 1.0);
    nxd::optimizer_step(optimizer, nxd::get_data_parallel_group(nxd::as_list), schedule.at(step));
    optimizer.zero_grad();
  }
  nxd::destroy_model_parallel();
}

bool is_block(const Layer& layer) { return layer.path().starts_with("model.layers."); }

Tensor loss_of(const DTensor& logits, const nxd::PipelineInputs& inputs) {
  return cross_entropy(logits, next_token_labels(inputs.at("labels"))).local();
}

void train_llama(World& world, Model& llama, const Tensor& ids, const Tensor& labels) {
  nxd::initialize_model_parallel(world, {.pipeline_model_parallel_size = 2});
  nxd::NxDPPModel model(llama, llama.sequence(),
                        {.transformer_layer_cls = &is_block,
                         .num_microbatches = 4,
                         .output_loss_value_spec = &loss_of,
                         .broadcast_and_average_loss = true,
                         .input_names = {"input_ids", "labels"},
                         .seed = 1,
                         .auto_partition = true});
  Optimizer optimizer(model.local_parameters(), {});
  for (int64_t step = 0; step < 10; ++step) {
    const double loss = model.run_train({{"input_ids", ids}, {"labels", labels}})[0];
    if (world.rank() == 0) std::printf("loss %.4f\n", loss);
    nxd::clip_grad_norm(model.local_parameters(), 1.0);
    optimizer.step(1e-4);
    optimizer.zero_grad();
  }
  nxd::destroy_model_parallel();
}

class Block : public nxd::PlainLayer {
 public:
  Block() {
    add("up", up_);
    add("down", down_);
  }

 protected:
  Tensor compute(const Tensor& x, const Context&) override { return x + down_(up_(x).relu()); }

 private:
  nxd::ColumnParallelLinear up_{16, 64, {.gather_output = false}};
  nxd::RowParallelLinear down_{64, 16, {.input_is_parallel = true}};
};

struct Transformer : LayerGroup {
  Transformer() {
    add("embedding", embedding);
    add("attention", attention);
    add("head", head);
  }
  Tensor operator()(const Tensor& ids) {
    const Tensor x = embedding(ids);
    return head((x + attention(x)).mean(1));
  }
  notebook::Embedding embedding{100, 16};
  notebook::MultiHeadSelfAttention attention{16, 4};
  notebook::ColRowLinearPair head{{.in_features = 16, .hidden_features = 8, .out_features = 2}};
};

void train_transformer(World& world) {  // the body of run_job({.num_ranks = 4}, &train_transformer)
  notebook::init(world, 2);             // tp 2, so dp 2
  Transformer model;
  nxd::move_model_to_device(model, at::kCPU, {.seed = 1});
  Optimizer optimizer(model.parameters(), {});
  for (int64_t step = 0; step < 10; ++step) {
    const auto [ids, labels] = batch_of(step, notebook::dp_grp().rank());
    at::cross_entropy_loss(model(ids), labels).backward();
    nxd::clip_grad_norm(model.parameters(), 1.0);
    nxd::optimizer_step(optimizer, get_data_parallel_group(as_list), 1e-3);
    optimizer.zero_grad();
  }
  destroy_model_parallel();
}
// clang-format on

std::pair<Tensor, Tensor> batch_of(int64_t step, int dp_rank) {
  const auto seed = static_cast<uint64_t>(step * 2 + dp_rank);
  const Tensor ids = test::ids({2, 5}, 100, seed);
  return {ids, ids.select(1, 0).remainder(2)};
}

/// Lines without indentation and without empty lines.
std::string lines_of(std::istream& text) {
  std::string out, line;
  while (std::getline(text, line)) {
    const size_t begin = line.find_first_not_of(' ');
    if (begin != std::string::npos) out += line.substr(begin) + "\n";
  }
  return out;
}

/// The lines of a block without those by which its page compiles alone.
std::string without_head(const std::string& block) {
  std::istringstream lines(block);
  std::string out, line;
  while (std::getline(lines, line)) {
    if (!line.starts_with("#include ") && line != "using namespace cleave;") out += line + "\n";
  }
  return out;
}

std::vector<std::string> cpp_blocks(const std::filesystem::path& page) {
  std::ifstream file(page);
  std::vector<std::string> blocks;
  std::string line, block;
  bool is_inside = false;
  while (std::getline(file, line)) {
    if (is_inside && line == "```") {
      std::istringstream text(block);
      blocks.push_back(lines_of(text));
      is_inside = false;
    } else if (is_inside) {
      block += line + "\n";
    } else if (line == "```cpp") {
      is_inside = true;
      block.clear();
    }
  }
  return blocks;
}

JobOptions ranks(int count) {
  JobOptions job;
  job.num_ranks = count;
  return job;
}

TEST(Pages, Programs_Run) {
  run_job(ranks(4), &train);
  run_job(ranks(4), &train_transformer);
  const Json config = Json::parse(R"({"model_type": "llama", "vocab_size": 29, "hidden_size": 12,
      "intermediate_size": 10, "num_hidden_layers": 2, "num_attention_heads": 3,
      "num_key_value_heads": 3, "max_position_embeddings": 16})",
                                  "config.json");
  run_job(ranks(2), [&](World& world) {
    const auto llama = make_model(config);
    const Tensor ids = test::ids({4, 6}, 29, 1);
    train_llama(world, *llama, ids, ids);
  });
}

TEST(Pages, PlainLayer_ComputesOnPlainTensors) {
  run_job(ranks(2), [](World& world) {
    nxd::initialize_model_parallel(world, {.tensor_model_parallel_size = 2});
    Block block;
    nxd::move_model_to_device(block, at::kCPU);
    for (const auto& p : block.parameters()) p->set_leaf(at::full(p->local_shape(), 1.0));
    const Tensor y = block(at::full({1, 2, 16}, 1.0));
    EXPECT_TRUE(y.eq(1 + 64 * 17 + 1).all().item<bool>());  // x + (16 + 1) * 64 + 1
    nxd::destroy_model_parallel();
  });
}

TEST(Pages, CppBlocks_AreInThisFile) {
  const std::filesystem::path root = test::source_file(".");
  std::ifstream source(root / "cleave/compat/pages_test.cc");
  const std::string here = lines_of(source);
  for (const char* page : {"docs/nxd.md", "docs/notebook-s4.md"}) {
    const auto blocks = cpp_blocks(root / page);
    EXPECT_FALSE(blocks.empty()) << page;
    for (const std::string& block : blocks) {
      EXPECT_NE(here.find(without_head(block)), std::string::npos) << page << " has another\n"
                                                                   << block;
    }
  }
}

}  // namespace
