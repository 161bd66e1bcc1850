#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/tensor_source.h"
#include "cleave/model/families.h"
#include "cleave/model/gguf/model_config.h"
#include "cleave/model/label_task.h"
#include "cleave/model/model.h"

namespace cleave::inline model {
namespace {

namespace fs = std::filesystem;

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

/// The base model that an adapter_config.json names; "" if it names none.
std::string base_in(const std::string& file) {
  constexpr size_t kLongestPath = 4095;
  constexpr const char* kKey = "base_model_name_or_path";
  const Json config = Json::parse_file(file, kConfigLimits);
  std::string named = config.string_or(kKey, "");
  const bool has_control = std::any_of(named.begin(), named.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  if (named.size() > kLongestPath || has_control) {
    config.at(kKey).fail("expected the folder of a model, or ORG/NAME");
  }
  return named;
}

/// Refuses an adapter whose base model is on this machine and of another family than `model`: their
/// matrices can have the same names and shapes. A GGUF file may have the family of its metadata.
void require_family_of_base(const ModelFolder& model, const std::string& given,
                            const fs::path& adapter) {
  const std::string base = base_in((adapter / kAdapterConfigName).string());
  std::error_code ignored;  // a path that cannot be accessed does not exist
  if (base.empty() || !fs::exists(base, ignored) || is_gguf(base) || is_gguf(model.path)) return;
  const fs::path config = resolve_run_folder(base) / "config.json";
  if (!fs::exists(config, ignored)) return;
  const std::string family =
      Json::parse_file(config.string(), kConfigLimits).string_or("model_type", "");
  const std::string own = model.config.string_or("model_type", "");
  CLEAVE_CHECK(family.empty() || family == own, Code::kFormat, adapter.string(),
               " is an adapter of ", base, ", a model of the family ", family, "; ", given,
               " is of the family ", own);
}

/// The first GGUF file in a folder by name; "" if there is none.
std::string gguf_in(const fs::path& folder) {
  std::string first;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path();
    if (is_gguf(file) && (first.empty() || file < first)) first = file;
  }
  return first;
}

/// The classes that a classifier's head in an adapter's files has; 0 without such a head.
int64_t num_classes_in(const fs::path& adapter) {
  const auto files = open_tensors(adapter, "adapter_model");
  for (const char* head : {"classifier.weight", "classifier.out_proj.weight"}) {
    const TensorInfo* info = files->find(str("base_model.model.", head));
    if (info != nullptr && info->shape.size() == 2) return info->shape.front();
  }
  return 0;
}

/// Gives an adapter with a head of its own, which its base model lacks, the config of a model with
/// this head: the config.json beside it, which has the names of the classes, or else that of the
/// base model. PEFT writes none.
void use_config_of_head(ModelFolder& model) {
  constexpr int64_t kMostClasses = 1 << 16;
  const fs::path folder = model.adapter;
  const Json settings = Json::parse_file((folder / kAdapterConfigName).string(), kConfigLimits);
  if (!settings.has("modules_to_save")) return;
  if (fs::exists(folder / "config.json")) {
    model.config = Json::parse_file((folder / "config.json").string(), kConfigLimits);
    return;
  }
  if (settings.string_or("task_type", "") != "SEQ_CLS") return;
  const int64_t num_classes = num_classes_in(folder);
  const bool has_head = labels_sequences(make_model(model.config)->task());
  if (num_classes < 1 || num_classes > kMostClasses || has_head) return;
  std::vector<std::string> labels;
  for (int64_t i = 0; i < num_classes; ++i) labels.push_back(str("LABEL_", i));
  model.config = classifier_config(model.config, labels);
}

}  // namespace

ModelFolder ModelFolder::open_adapter(const std::string& path, const std::string& base) {
  const std::string file = (fs::path(path) / kAdapterConfigName).string();
  const std::string named = base.empty() ? base_in(file) : base;
  CLEAVE_CHECK(
      !named.empty(), Code::kFormat, file,
      " names no base_model_name_or_path; give the base model with --model and this folder "
      "with --adapter");
  std::error_code ignored;  // a path that cannot be accessed does not exist
  CLEAVE_CHECK(fs::exists(named, ignored) || is_hub_name(named), Code::kIo, "the base model ",
               named, " of the adapter ", path,
               " does not exist; give its place with --model (convert: --from), and the adapter "
               "with --adapter or --resume");
  // Before it is opened: a chain of adapters could be endless.
  const fs::path found = resolve_run_folder(local_model(named));
  CLEAVE_CHECK(!fs::exists(found / kAdapterConfigName, ignored), Code::kFormat, "the base model ",
               named, " of the adapter ", path,
               " is an adapter itself; merge that with `cleave convert` first");
  ModelFolder folder = open(named);
  folder.base = std::exchange(folder.path, path);
  folder.adapter = path;
  use_config_of_head(folder);
  return folder;
}

ModelFolder ModelFolder::open(const std::string& given, const std::string& adapter) {
  if (!adapter.empty()) {
    const fs::path folder = resolve_run_folder(local_model(adapter, "--adapter"));
    std::error_code ignored;  // a path that cannot be accessed does not exist
    CLEAVE_CHECK(fs::exists(folder / kAdapterConfigName, ignored), Code::kIo, folder.string(),
                 " holds no adapter: ", kAdapterConfigName,
                 " is not there; give a PEFT folder, or the --out folder of a run with --lora");
    ModelFolder found = open(given);
    CLEAVE_CHECK(found.adapter.empty(), Code::kUsage, given,
                 " is an adapter itself, and --adapter gives another one; give the base model");
    require_family_of_base(found, given, folder);
    found.adapter = folder.string();
    use_config_of_head(found);
    return found;
  }
  const std::string path = local_model(given).string();
  if (is_gguf(path)) {
    return {.path = path, .config = config_from_gguf(Gguf::open(path)), .stem = "model"};
  }
  CLEAVE_CHECK(fs::is_directory(path), Code::kIo, "model folder ", path,
               fs::exists(path) ? " is a file" : " does not exist",
               "; give a folder with config.json, a run's --out folder, or a GGUF "
               "file");
  const fs::path folder = resolve_run_folder(path);
  if (fs::exists(folder / kAdapterConfigName)) return open_adapter(folder.string(), "");
  if (fs::exists(folder / "config.json")) {
    return {.path = folder.string(),
            .config = Json::parse_file((folder / "config.json").string(), kConfigLimits),
            .stem = "model"};
  }
  if (!fs::exists(folder / "params.json")) {
    const std::string gguf = gguf_in(folder);
    throw Error(Code::kIo, str(folder.string(),
                               " holds no model: neither config.json (Hugging "
                               "Face) nor params.json (Meta) is there",
                               gguf.empty() ? download_advice(folder)
                                            : "; give the path of a GGUF file in it: " + gguf));
  }
  const Json params = Json::parse_file((folder / "params.json").string(), kConfigLimits);
  const auto tensors = Safetensors::open(folder, "consolidated");
  const std::vector<int64_t>& embedding = tensors.at("tok_embeddings.weight").shape;
  CLEAVE_CHECK(embedding.size() == 2, Code::kFormat, tensors.path(), ": tok_embeddings.weight has ",
               embedding.size(), " dims; expected [vocab, dim]");
  const int64_t vocab_size = embedding.front();
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

}  // namespace cleave::inline model
