#pragma once
#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/generate/evaluate.h"
#include "cleave/generate/options.h"
#include "cleave/train/options.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/golden.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

/// Tests of models that learn labels of texts: classes, or numbers.
namespace cleave::test {

inline nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// What an action prints.
inline std::string printed(const std::function<void()>& action) {
  Captured out;
  action();
  return out.take();
}

/// A fixture with the golden classifier distilbert-cls and a folder for runs.
class LabelModels : public testing::Test {
 protected:
  /// The batches of the golden classifier, one row a line: its ids and `labels_of` them.
  std::string golden_rows(
      const std::function<nlohmann::json(const std::vector<int64_t>& ids)>& labels_of) {
    const at::Tensor batches = golden_answers("distilbert-cls").at("train.input_ids");
    const at::Tensor rows = batches.flatten(0, 1).contiguous();
    std::string path = folder_ / "rows.jsonl";
    std::ofstream out(path);
    for (int64_t i = 0; i < rows.size(0); ++i) {
      const int64_t* first = rows[i].const_data_ptr<int64_t>();
      const std::vector<int64_t> ids(first, first + rows.size(1));
      nlohmann::json line{{"input_ids", ids}};
      line.update(labels_of(ids));
      out << line << '\n';
    }
    return path;
  }

  /// The golden model's AdamW steps.
  TrainOptions options(const std::string& model, const std::string& data, const std::string& out) {
    TrainOptions o;
    o.model = model;
    o.data = {data};
    o.out = folder_ / out;
    o.seq_len = 12;
    o.batch_size = 4;
    o.steps = 3;
    o.shuffle = false;
    o.schedule = "constant";
    o.warmup = 0;
    o.lr = 1e-3;
    o.adam_betas = {0.9, 0.999};
    o.adam_eps = 1e-6;
    o.weight_decay = 0.01;
    o.decay_on = "all";
    o.clip = 0;
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  /// Expects the losses and norms of transformers, the golden's tensors `kind`.loss and
  /// `kind`.grad_norm, on every kind of layout. Bounds: as in golden_model.h; in bf16 the error of
  /// a logit is a few units of 1/256 of its size.
  void expect_golden_steps(const std::string& kind, const std::string& model,
                           const std::string& data) {
    const auto golden = golden_answers("distilbert-cls");
    const auto expect = [&](const std::string& name,
                            const std::function<void(TrainOptions&)>& change, double bound = 1e-5) {
      TrainOptions o = options(model, data, name);
      change(o);
      const auto steps = steps_of(o);
      ASSERT_EQ(steps.size(), 3U) << name;
      for (size_t i = 0; i < 3; ++i) {
        const auto at = static_cast<int64_t>(i);
        const double norm = golden.at(kind + ".grad_norm")[at].item<float>();
        EXPECT_NEAR(steps[i].loss, golden.at(kind + ".loss")[at].item<float>(), bound) << name << i;
        EXPECT_NEAR(steps[i].grad_norm, norm, bound * std::max(1.0, norm)) << name << i;
      }
    };
    expect("one", [](TrainOptions& /*o*/) {});
    expect("tp", [](TrainOptions& o) {
      o.tp = 2;
      o.sequence_parallel = true;
    });
    expect("pp", [](TrainOptions& o) { o.pp = 2; });
    // One rank has two sequences, so the others run a micro-batch without labels.
    expect("dp", [](TrainOptions& o) {
      o.dp = 3;
      o.micro_batch_size = 1;
    });
    expect("zero", [](TrainOptions& o) {
      o.dp = o.tp = 2;
      o.zero = 1;
    });
    expect("fsdp", [](TrainOptions& o) {
      o.dp = 2;
      o.fsdp = true;
      o.recompute = "full";
    });
    expect(
        "bf16", [](TrainOptions& o) { o.dtype = "bf16"; }, 0.05);
  }

  /// The output of `cleave eval --json`.
  static nlohmann::json evaluated(const std::string& model, const std::string& data) {
    EvalOptions o;
    o.model = model;
    o.data = {data};
    o.batch_size = 4;
    o.gemm = "mkl";
    o.json = true;
    return nlohmann::json::parse(printed([&] { cleave_eval(o); }));
  }

  TempFolder folder_;
};

}  // namespace cleave::test
