#include <filesystem>
#include <fstream>

#include "cleave/format/safetensors.h"
#include "cleave/model/llama/config.h"
#include "cleave/model/model.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

/// A run folder names its newest checkpoint in a file `latest`.
fs::path followed(const fs::path& path) {
  const fs::path latest = path / "latest";
  if (fs::exists(path / "config.json") || !fs::exists(latest)) return path;
  std::ifstream file(latest);
  std::string name;
  std::getline(file, name);
  const bool is_plain = !name.empty() && name.find('/') == std::string::npos && name.front() != '.';
  CLEAVE_CHECK(is_plain, Code::kFormat, latest.string(), " holds '", name,
               "'; expected the name of a checkpoint folder");
  return path / name;
}

struct MetaName {
  std::string_view hugging_face, meta;
};
constexpr MetaName kMetaNames[] = {{"model.embed_tokens.", "tok_embeddings."},
                                   {"model.norm.", "norm."},
                                   {"lm_head.", "output."},
                                   {"model.layers.", "layers."},
                                   {"self_attn.q_proj.", "attention.wq."},
                                   {"self_attn.k_proj.", "attention.wk."},
                                   {"self_attn.v_proj.", "attention.wv."},
                                   {"self_attn.o_proj.", "attention.wo."},
                                   {"mlp.gate_proj.", "feed_forward.w1."},
                                   {"mlp.down_proj.", "feed_forward.w2."},
                                   {"mlp.up_proj.", "feed_forward.w3."},
                                   {"post_attention_layernorm.", "ffn_norm."},
                                   {"input_layernorm.", "attention_norm."}};

}  // namespace

ModelFolder ModelFolder::open(const std::string& path) {
  const fs::path folder = followed(path);
  CLEAVE_CHECK(
      fs::is_directory(folder), Code::kIo, "model folder ", path,
      " does not exist; give a folder with config.json, a run's --out folder, or a preset");
  if (fs::exists(folder / "config.json")) {
    return {.path = folder.string(),
            .config = Json::parse_file((folder / "config.json").string()),
            .stem = "model"};
  }
  CLEAVE_CHECK(
      fs::exists(folder / "params.json"), Code::kIo, folder.string(),
      " holds no model: neither config.json (Hugging Face) nor params.json (Meta) is there");
  const Json params = Json::parse_file((folder / "params.json").string());
  const auto tensors = Safetensors::open(folder, "consolidated");
  const int64_t vocab_size = tensors.at("tok_embeddings.weight").shape.at(0);
  return {.path = folder.string(),
          .config = llama_config_from_meta(params, vocab_size),
          .stem = "consolidated",
          .meta_names = true};
}

StoredAs ModelFolder::stored_as(const std::string& parameter) const {
  if (!meta_names) return {.name = parameter};
  StoredAs stored{.name = parameter};
  for (const MetaName& n : kMetaNames) {
    const size_t at = stored.name.find(n.hugging_face);
    if (at == std::string::npos) continue;
    if (n.meta == "attention.wq." || n.meta == "attention.wk.") {
      stored.interleaved_rows = config.at("head_dim").as_int();
    }
    stored.name.replace(at, n.hugging_face.size(), n.meta);
  }
  return stored;
}

}  // namespace cleave
