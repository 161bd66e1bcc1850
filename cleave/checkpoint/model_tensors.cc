#include "cleave/checkpoint/model_tensors.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/base/byte_progress.h"
#include "cleave/base/stop.h"
#include "cleave/checkpoint/adapter_config.h"
#include "cleave/checkpoint/ema_tensors.h"
#include "cleave/checkpoint/gguf_tensors.h"
#include "cleave/checkpoint/int4_tensors.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/checkpoint/shard_files.h"
#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/torch_bin.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::inline checkpoint {
namespace {

/// How the files store a parameter: under its own name, or under another one that they have.
StoredAs stored_as(const Model& model, const ModelFolder& folder, const TensorSource& files,
                   const std::string& parameter) {
  StoredAs as = folder.stored_as(parameter);
  if (files.find(as.name) != nullptr) return as;
  for (const std::string& name : model.other_names(parameter)) {
    if (files.find(name) != nullptr) return {.name = name};
  }
  return as;
}

/// The matrix that two layers use, an embedding and its head; null if there is none. The config
/// alone does not show it: families have different defaults.
std::shared_ptr<const Parameter> tied_weight(Model& model) {
  std::set<const Parameter*> seen;
  std::shared_ptr<const Parameter> tied;
  model.walk([&](Layer& layer) {
    for (const auto& p : layer.own_parameters()) {
      const bool is_shared = !seen.insert(p.get()).second;
      if (is_shared && p->shape().size() == 2) tied = p;  // BERT's head shares a bias too
    }
  });
  return tied;
}

/// The output matrices that files may hold beside the embedding to which the model ties them.
constexpr std::string_view kHeads[] = {"lm_head.weight", "cls.predictions.decoder.weight"};

/// Tables and duplicates that a file may hold although no parameter uses them.
bool is_known_addition(const std::string& name, Model& model) {
  if (name == kHeads[0]) {
    return model.config().bool_or("tie_word_embeddings", false) || tied_weight(model) != nullptr;
  }
  return name.ends_with(".rotary_emb.inv_freq") || name == "rope.freqs";
}

std::string listed(const std::set<std::string>& names, size_t most) {
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (++shown > most) return text + str(" and ", names.size() - most, " more");
    text += (shown == 1 ? " " : ", ") + name;
  }
  return text;
}

/// Whether the folder's adapter has weights that take the place of the model's.
bool has_trained_layers(const ModelFolder& folder) {
  return !folder.adapter.empty() && read_adapter(folder.adapter).replaces_weights();
}

bool has_whole_files(const ModelFolder& folder) {
  return is_gguf(folder.weights_path()) || has_safetensors(folder.weights_path(), folder.stem) ||
         has_torch_bin(folder.weights_path());
}

}  // namespace

bool have_same_values(const TensorInfo& a, const BlockReader& read_a, const TensorInfo& b,
                      const BlockReader& read_b, const std::vector<Slice>& block) {
  bool is_same = true;
  std::vector<std::byte> bytes_a, bytes_b;
  for_each_chunk(a, block, [&](const std::vector<Slice>& slices) {
    if (!is_same) return;
    bytes_a.resize(block_bytes(a, slices));
    bytes_b.resize(block_bytes(b, slices));
    read_a(slices, bytes_a);
    read_b(slices, bytes_b);
    if (a.dtype == b.dtype && bytes_a == bytes_b) return;
    const int64_t count = std::ssize(bytes_a) / item_bytes(a.dtype);
    const Tensor in_a = at::from_blob(bytes_a.data(), {count}, at::dtype(scalar_type(a.dtype)));
    const Tensor in_b = at::from_blob(bytes_b.data(), {count}, at::dtype(scalar_type(b.dtype)));
    const auto narrow = in_b.itemsize() > in_a.itemsize() ? in_a.scalar_type() : in_b.scalar_type();
    is_same = at::equal(in_a.to(narrow), in_b.to(narrow));
  });
  return is_same;
}

void check_range(const Tensor& values, const Tensor& narrow, std::string_view tensor) {
  // bf16 has the range of fp32.
  const bool is_smaller =
      values.is_floating_point() && values.scalar_type() != at::kHalf &&
      (narrow.scalar_type() == at::kHalf || values.scalar_type() == at::kDouble);
  if (!is_smaller) return;
  const Tensor lost = narrow.isinf().logical_and(values.isinf().logical_not());
  CLEAVE_CHECK(!lost.any().item<bool>(), Code::kFormat, "tensor '", tensor,
               "' has values too large for ", name(dtype_of(narrow.scalar_type())),
               "; choose a dtype with a larger range");
}

void require_all(const std::set<std::string>& missing, const std::set<std::string>& unexpected,
                 const std::string& what, size_t most_names) {
  if (missing.empty() && unexpected.empty()) return;
  std::string text = what + ":";
  if (!missing.empty()) text += str(" ", missing.size(), " missing:", listed(missing, most_names));
  if (!unexpected.empty()) {
    text += str(missing.empty() ? " " : "; ", unexpected.size(),
                " that the model does not use:", listed(unexpected, most_names));
  }
  throw Error(Code::kFormat, text);
}

std::unique_ptr<TensorSource> open_model_files(const ModelFolder& folder) {
  const bool is_averaged = folder.averaged && folder.adapter.empty();  // an adapter has them itself
  CLEAVE_CHECK(
      !is_averaged || has_safetensors(folder.weights_path(), folder.stem), Code::kFormat,
      folder.weights_path(),
      " is not a checkpoint of `cleave train`, so it has no averaged weights; leave out --ema");
  if (is_gguf(folder.weights_path())) {
    return std::make_unique<GgufTensors>(Gguf::open(folder.weights_path()), folder.config);
  }
  if (!has_whole_files(folder)) {
    if (auto shards = find_shard_files(folder.weights_path())) {
      return std::make_unique<ShardedTensors>(*shards, folder.config);
    }
  }
  auto files = open_tensors(folder.weights_path(), folder.stem);
  if (Int4Tensors::has_any(*files)) files = std::make_unique<Int4Tensors>(std::move(files));
  if (!is_averaged) return files;
  return std::make_unique<EmaTensors>(std::move(files), folder.weights_path());
}

std::unique_ptr<TensorSource> open_whole_tensors(const ModelFolder& folder,
                                                 std::optional<DType> merged) {
  const bool has_own_names = has_whole_files(folder) && !folder.meta_names;
  if (has_own_names && folder.adapter.empty()) return open_model_files(folder);
  return std::make_unique<ModelTensors>(folder, *make_model(folder.config), merged);
}

void require_intact_source(const ModelFolder& folder) {
  for (const std::string& source : folder.folders()) {
    if (!std::filesystem::exists(std::filesystem::path(source) / kManifestName)) continue;
    const OnBytes show = terminal_progress("verified MiB");
    require_intact(source, {.on_bytes = [&](uint64_t done, uint64_t total) {
                     if (const int signal = StopSignal::pending(); signal != 0)
                       throw Stopped{signal};
                     show(done, total);
                   }});
  }
}

void warn_of_lost_adapter(const ModelFolder& folder, const std::string& flag) {
  if (folder.adapter.empty()) return;
  const auto files = open_model_files(folder);
  const std::vector<TensorInfo> tensors = files->list();
  const bool has_4_bits = std::any_of(tensors.begin(), tensors.end(), [&](const TensorInfo& info) {
    return files->int4_layout(info.name).has_value();
  });
  if (!has_4_bits) return;
  log_warning_once(folder.weights_path(), " has matrices in 4 bits, and ", flag,
                   " rounds their sums with the adapter to 4 bits again: small changes are lost; ",
                   "give a wider --dtype");
}

std::optional<DType> merged_dtype(const std::string& dtype) {
  if (dtype.empty()) return std::nullopt;
  return dtype_from_name(dtype).value_or(DType::kF32);
}

ModelTensors::ModelTensors(const ModelFolder& folder, Model& model, std::optional<DType> merged,
                           bool must_fit)
    : files_(open_model_files(folder)) {
  open_adapter(folder, model, must_fit);
  std::set<std::string> used, missing;
  for (const auto& parameter : model.parameters()) {
    if (parameter->is_adapter()) continue;
    StoredAs stored = stored_as(model, folder, *files_, parameter->name());
    const TensorInfo* info = files_->find(stored.name);
    if (add_of_adapter(*parameter)) {
      used.insert(stored.name);
      continue;
    }
    (info == nullptr ? missing : used).insert(stored.name);
    if (info == nullptr) {
      missing_.insert(parameter->name());
      continue;
    }
    CLEAVE_CHECK(info->shape == parameter->shape(), Code::kShape, parameter->name(),
                 ": the file has shape ", c10::IntArrayRef(info->shape), "; the model needs ",
                 c10::IntArrayRef(parameter->shape()), ", as its config.json says");
    add({{parameter->name(), info->dtype, info->shape}, std::move(stored)});
  }
  num_parameters_ = tensors_.size();
  const std::set<std::string> unexpected = add_others(folder, model, used);
  if (must_fit)
    require_all(missing, unexpected, folder.weights_path() + " does not fit its config.json");
  left_out_.insert(unexpected.begin(), unexpected.end());
  if (!is_merged_) return;
  for (const ModelTensor& tensor : tensors_) {
    adapter_->require_same_base(tensor, base_reader(tensor));
  }
  if (merged) widen_merged(*merged);
}

void ModelTensors::open_adapter(const ModelFolder& folder, Model& model, bool must_fit) {
  const Parameters parameters = model.parameters();
  const bool trains_adapter = std::any_of(parameters.begin(), parameters.end(),
                                          [](const auto& p) { return p->is_adapter(); });
  is_merged_ = !folder.adapter.empty() && !trains_adapter;
  // A run that trains adapters reads them itself, but the head belongs to the model here.
  if (!is_merged_ && !has_trained_layers(folder)) return;
  adapter_ = std::make_unique<AdapterDelta>(folder.adapter, model, must_fit ? nullptr : &left_out_,
                                            folder.averaged);
}

bool ModelTensors::add_of_adapter(const Parameter& parameter) {
  const std::string whole = adapter_ ? adapter_->whole(parameter.name()) : "";
  if (whole.empty()) return false;
  const DType dtype = adapter_->files().at(whole).dtype;
  add({{parameter.name(), dtype, parameter.shape()}, {.name = whole}, /*is_of_adapter=*/true});
  return true;
}

std::set<std::string> ModelTensors::add_others(const ModelFolder& folder, Model& model,
                                               const std::set<std::string>& used) {
  std::set<std::string> unexpected;
  for (const TensorInfo& info : files_->list()) {
    if (used.contains(info.name)) continue;
    if (std::find(std::begin(kHeads), std::end(kHeads), info.name) != std::end(kHeads)) {
      require_copy(info, model);
    }
    if (model.ignores(info.name)) {
      left_out_.insert(info.name);
    } else if (!is_known_addition(info.name, model)) {
      unexpected.insert(info.name);
    } else if (info.name != "lm_head.weight" && !folder.meta_names) {
      add({info, {.name = info.name}});
    }
  }
  return unexpected;
}

void ModelTensors::require_copy(const TensorInfo& head, Model& model) const {
  const std::shared_ptr<const Parameter> tied = tied_weight(model);
  const ModelTensor* embedding = tied ? find(tied->name()) : nullptr;
  if (embedding == nullptr || tied->ownership() == Parameter::Ownership::kNotOwned) return;
  const BlockReader read_head = [&](std::span<const Slice> slices, std::span<std::byte> out) {
    files_->read_block(head.name, slices, out);
  };
  bool is_copy = head.shape == embedding->shape;
  for (const std::vector<Slice>& block : held_blocks(*tied)) {
    is_copy =
        is_copy && have_same_values(head, read_head, *embedding, base_reader(*embedding), block);
  }
  CLEAVE_CHECK(is_copy, Code::kFormat, files_->path(), ": ", head.name, " differs from ",
               embedding->stored.name,
               ", to which config.json ties it; set tie_word_embeddings to ",
               "false there to use both, or remove ", head.name);
}

void ModelTensors::widen_merged(DType merged) {
  for (ModelTensor& tensor : tensors_) {
    if (!adapter_->changes(tensor.name)) continue;
    tensor.dtype = dtype_of(at::promoteTypes(scalar_type(tensor.dtype), scalar_type(merged)));
  }
}

ModelTensors ModelTensors::for_other_task(const ModelFolder& folder, Model& model, DType merged) {
  const auto own = make_model(folder.config);
  (void)ModelTensors(folder, *own);  // throws if the files do not fit their own model
  return {folder, model, merged, /*must_fit=*/false};
}

std::vector<TensorInfo> ModelTensors::additions() const {
  return {tensors_.begin() + static_cast<std::ptrdiff_t>(num_parameters_), tensors_.end()};
}

void ModelTensors::read_block(std::string_view name, std::span<const Slice> slices,
                              std::span<std::byte> out) const {
  const ModelTensor& tensor = at(name);
  read_base(tensor, slices, out);
  if (!is_merged_) return;
  adapter_->merge(tensor, slices, out, base_reader(tensor));
}

BlockReader ModelTensors::base_reader(const ModelTensor& tensor) const {
  return [this, &tensor](std::span<const Slice> slices, std::span<std::byte> out) {
    read_base(tensor, slices, out);
  };
}

std::optional<Int4Layout> ModelTensors::int4_layout(std::string_view name) const {
  const ModelTensor* tensor = find(name);
  if (tensor == nullptr || adapter_ || tensor->stored.interleaved_rows != 0) return std::nullopt;
  return files_->int4_layout(tensor->stored.name);
}

void ModelTensors::read_int4(std::string_view name, const Int4Block& block,
                             const Int4Memory& out) const {
  files_->read_int4(at(name).stored.name, block, out);
}

void ModelTensors::read_base(const ModelTensor& tensor, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  const uint64_t bytes = checked_block_bytes(tensor, slices, out);
  const TensorSource& files = tensor.is_of_adapter ? adapter_->files() : *files_;
  const auto read = [&](std::span<std::byte> to) {
    if (tensor.stored.interleaved_rows == 0)
      return files.read_block(tensor.stored.name, slices, to);
    read_interleaved(files, tensor.stored, slices, to);
  };
  const DType stored = files.at(tensor.stored.name).dtype;
  if (stored == tensor.dtype) return read(out);
  const int64_t count = static_cast<int64_t>(bytes) / item_bytes(tensor.dtype);
  const at::Tensor held = at::empty({count}, scalar_type(stored));
  read({static_cast<std::byte*>(held.mutable_data_ptr()), held.nbytes()});
  at::from_blob(out.data(), {count}, at::dtype(scalar_type(tensor.dtype))).copy_(held);
}

}  // namespace cleave::inline checkpoint
