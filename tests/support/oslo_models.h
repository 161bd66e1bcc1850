#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "cleave/checkpoint/load.h"
#include "cleave/compat/oslo.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace cleave::test {

/// A model with all of its weights, as from from_pretrained.
inline std::unique_ptr<Model> whole_model(const std::string& path) {
  const ModelFolder folder = ModelFolder::open(path);
  auto model = make_model(folder.config);
  load_model(*model, folder, at::kFloat);
  return model;
}

/// 6 heads, a vocabulary that no number of ranks divides; without memory.
inline std::unique_ptr<Model> small_gpt2() {
  return make_model(Json::parse(R"({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2",
    "vocab_size": 53, "n_embd": 24, "n_layer": 2, "n_head": 6, "n_positions": 16})",
                                "config.json"));
}

inline oslo::Config config_of(int tp) {
  return Json::parse(str(R"({"model_parallelism": {"tensor_parallel_size": )", tp, "}}"), "config");
}

/// A golden model's inputs; `part` selects this rank's sequences.
inline Batch batch_of(const std::map<std::string, at::Tensor>& golden, const std::string& prefix,
                      const std::function<at::Tensor(const at::Tensor&)>& part) {
  const auto find = [&](const std::string& name) {
    const auto at = golden.find(prefix + "." + name);
    return at == golden.end() ? at::Tensor() : part(at->second);
  };
  const at::Tensor mask = find("attention_mask");
  return {.ids = find("input_ids"),
          .labels = find("labels"),
          .attention_mask = mask.defined() ? mask.to(at::kBool) : mask,
          .token_types = find("token_type_ids")};
}

}  // namespace cleave::test
