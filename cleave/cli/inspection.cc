#include "cleave/cli/inspection.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/checkpoint/joined_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/cli/library.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/torch_bin.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code problem;
  return fs::exists(path, problem);
}

std::vector<InspectedTensor> inspected(std::vector<TensorInfo> list) {
  std::vector<InspectedTensor> tensors;
  for (TensorInfo& info : list) {
    std::string type(file_name(info.dtype));
    const uint64_t bytes = block_bytes(info, {});
    tensors.push_back({std::move(info), std::move(type), bytes});
  }
  return tensors;
}

void add_tensors(const TensorSource& source, Inspection& found) {
  found.tensors = inspected(source.list());
  found.tensor_files = source.file_names();
}

/// Whether the folder has files of ranks, as `convert --format oslo` and `nxd` name them.
bool has_rank_files(const fs::path& folder) {
  const fs::directory_iterator files(folder);
  return std::any_of(begin(files), end(files), [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename();
    return name.starts_with("pytorch_model_tp_") || name.starts_with("tp_rank_");
  });
}

/// Only the library knows how to join the parts of a tensor.
void add_joined_tensors(const fs::path& folder, Inspection& found) {
  std::vector<TensorInfo> tensors;
  library_function<decltype(cleave_joined_tensors)>("cleave_joined_tensors")(
      folder.string(), tensors, found.tensor_files);
  found.tensors = inspected(std::move(tensors));
}

constexpr int64_t kMostHeads = 1 << 20;

// The first of the keys that the config has: Hugging Face, GPT-2 and Meta use different ones.
std::optional<int64_t> first_int(const Json& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (config.has(key)) return config.at(key).as_int(1, kMostHeads);
  }
  return std::nullopt;
}

void read_folder(const fs::path& folder, Inspection& found) {
  for (const char* name : {"config.json", "params.json"}) {
    if (!found.config && is_there(folder / name)) {
      found.config = Json::parse_file((folder / name).string());
    }
  }
  const bool is_meta = has_safetensors(folder, "consolidated") && !has_safetensors(folder);
  const bool is_adapter = is_there(folder / "adapter_config.json");
  const std::string_view stem = is_adapter ? "adapter_model" : is_meta ? "consolidated" : "model";
  if (is_adapter && !found.config) {
    found.config = Json::parse_file((folder / "adapter_config.json").string());
  }
  const bool is_older_adapter = is_adapter && is_there(folder / "adapter_model.bin");
  if (has_safetensors(folder, stem) || has_torch_bin(folder) || is_older_adapter) {
    add_tensors(*open_tensors(folder, stem), found);
  } else if (is_there(folder / "config.json") && has_rank_files(folder)) {
    add_joined_tensors(folder, found);
  }
  CLEAVE_CHECK(found.config || !found.tensors.empty(), Code::kIo, folder.string(),
               ": holds no model; expected config.json or params.json, and *.safetensors or *.bin");
  found.kind = is_adapter ? "LoRA adapter" : "model folder";
  found.has_manifest = is_there(folder / kManifestName);
  if (!is_there(folder / kStateName)) return;
  found.kind = is_adapter ? "checkpoint of a LoRA adapter" : "checkpoint";
  const Json state = Json::parse_file((folder / kStateName).string());
  if (state.has("step")) found.step = state.at("step").as_int(0);
  if (has_safetensors(folder, kOptimizerStem)) {
    found.optimizer = inspected(Safetensors::open(folder, kOptimizerStem).list());
  }
}

std::vector<std::string> checkpoints_in(const fs::path& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step_") && name.find('.') == std::string::npos) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

int64_t num_elements(const TensorInfo& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t Inspection::num_parameters() const {
  int64_t count = 0;
  for (const InspectedTensor& tensor : tensors) {
    const std::string& name = tensor.name;
    if (name.ends_with(".int4_scales") || name.ends_with(".int4_mins")) continue;
    const bool is_in_pairs = name.ends_with(".int4") || name.ends_with(".int4_t");
    count += num_elements(tensor) * (is_in_pairs ? 2 : 1);
  }
  return count;
}

std::optional<TpSizes> Inspection::tp_sizes() const {
  if (!config) return std::nullopt;
  const auto heads = first_int(*config, {"num_attention_heads", "n_head", "n_heads"});
  if (!heads) return std::nullopt;
  const auto kv_heads = first_int(*config, {"num_key_value_heads", "n_kv_heads"});
  TpSizes sizes{.num_heads = *heads,
                .num_kv_heads = kv_heads.value_or(*heads),
                .max_tp = *heads,
                .even_tp = {}};
  for (int64_t tp = 1; tp <= *heads; ++tp) {
    if (*heads % tp == 0) sizes.even_tp.push_back(tp);
  }
  return sizes;
}

Inspection inspect(const fs::path& path) {
  CLEAVE_CHECK(is_there(path), Code::kIo, path.string(), ": no such file or folder");
  Inspection found;
  found.path = path;
  if (is_gguf(path)) {
    const Gguf file = Gguf::open(path);
    found.kind = "GGUF file";
    found.metadata = file.metadata();
    for (const GgufTensor& tensor : file.tensors()) {
      found.tensors.push_back({{tensor.name, tensor.dtype, tensor.shape},
                               std::string(block_of(tensor.type).name),
                               tensor.bytes});
    }
    found.tensor_files = file.file_names();
    return found;
  }
  if (!fs::is_directory(path)) {
    found.kind = is_torch_file_name(path.filename().string()) ? "torch file" : "safetensors file";
    add_tensors(*open_tensors(path), found);
    return found;
  }
  found.path = resolve_run_folder(path);
  if (found.path != path) found.run_checkpoints = checkpoints_in(path);
  read_folder(found.path, found);
  return found;
}

}  // namespace cleave::cli
