#include "cleave/checkpoint/model_tensors.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "cleave/checkpoint/split_files.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/torch_bin.h"

namespace cleave {
namespace {

/// How the files store a parameter: under its own name, or under another one that they have.
StoredAs stored_as(const Model& model, const ModelFolder& folder, const TensorSource& files,
                   const std::string& parameter) {
  const StoredAs as = folder.stored_as(parameter);
  if (files.find(as.name) != nullptr) return as;
  for (const std::string& name : model.other_names(parameter)) {
    if (files.find(name) != nullptr) return {.name = name};
  }
  return as;
}

/// Tables and duplicates that a file may hold although no parameter uses them.
bool is_known_addition(const std::string& name, const Model& model) {
  if (name == "lm_head.weight") return model.config().bool_or("tie_word_embeddings", false);
  return name.ends_with(".rotary_emb.inv_freq") || name == "rope.freqs";
}

std::string listed(const std::set<std::string>& names) {
  constexpr size_t kShown = 20;
  std::string text;
  size_t shown = 0;
  for (const std::string& name : names) {
    if (++shown > kShown) return text + str(" and ", names.size() - kShown, " more");
    text += (shown == 1 ? " " : ", ") + name;
  }
  return text;
}

/// Meta stores the two halves of each rotary pair next to each other: rows 2i and 2i+1 of a head
/// are rows i and i + rows/2 here. Reads the heads that overlap the block, then picks its rows.
void read_interleaved(const TensorSource& files, const StoredAs& stored,
                      std::span<const Slice> slices, std::span<std::byte> out) {
  const int64_t head_rows = stored.interleaved_rows;
  std::vector<Range> wanted = {{0, files.at(stored.name).shape[0]}};
  std::vector<Slice> stored_slices;  // of the other dims
  for (const Slice& slice : slices) {
    if (slice.dim == 0) {
      wanted = slice.ranges;
    } else {
      stored_slices.push_back(slice);
    }
  }
  std::vector<Range> heads;  // rows of whole heads
  for (const Range& range : wanted) {
    for (int64_t head = range.begin / head_rows; head * head_rows < range.end; ++head) {
      const Range rows = {head * head_rows, (head + 1) * head_rows};
      if (range.size() > 0 && (heads.empty() || heads.back().begin < rows.begin)) {
        heads.push_back(rows);
      }
    }
  }
  if (heads.empty()) return;
  stored_slices.push_back({0, heads});
  std::vector<std::byte> rows(block_bytes(files.at(stored.name), stored_slices));
  files.read_block(stored.name, stored_slices, rows);
  const size_t row_bytes = rows.size() / (heads.size() * static_cast<size_t>(head_rows));
  for (const Range& range : wanted) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const auto head = std::partition_point(heads.begin(), heads.end(),
                                             [&](const Range& r) { return r.end <= row; });
      const int64_t within = row - head->begin, half = head_rows / 2;
      const int64_t place = within < half ? 2 * within : 2 * (within - half) + 1;
      const auto from = static_cast<size_t>((head - heads.begin()) * head_rows + place);
      std::memcpy(out.data(), rows.data() + from * row_bytes, row_bytes);
      out = out.subspan(row_bytes);
    }
  }
}

bool has_whole_files(const ModelFolder& folder) {
  return has_safetensors(folder.path, folder.stem) || has_torch_bin(folder.path);
}

}  // namespace

void require_all(const std::set<std::string>& missing, const std::set<std::string>& unexpected,
                 const std::string& what) {
  if (missing.empty() && unexpected.empty()) return;
  std::string text = what + ":";
  if (!missing.empty()) text += str(" ", missing.size(), " missing:", listed(missing));
  if (!unexpected.empty()) {
    text += str(missing.empty() ? " " : "; ", unexpected.size(),
                " that the model does not use:", listed(unexpected));
  }
  throw Error(Code::kFormat, text);
}

std::unique_ptr<TensorSource> open_model_files(const ModelFolder& folder) {
  if (!has_whole_files(folder)) {
    if (auto split = find_split_files(folder.path)) {
      return std::make_unique<SplitTensors>(*split, folder.config);
    }
  }
  return open_tensors(folder.path, folder.stem);
}

std::unique_ptr<TensorSource> open_whole_tensors(const ModelFolder& folder) {
  if (has_whole_files(folder) && !folder.meta_names) return open_model_files(folder);
  return std::make_unique<ModelTensors>(folder, *make_model(folder.config));
}

ModelTensors::ModelTensors(const ModelFolder& folder, Model& model, bool must_fit)
    : files_(open_model_files(folder)) {
  std::set<std::string> used, missing, unexpected;
  for (const auto& parameter : model.parameters()) {
    StoredAs stored = stored_as(model, folder, *files_, parameter->name());
    const TensorInfo* info = files_->find(stored.name);
    (info == nullptr ? missing : used).insert(stored.name);
    if (info == nullptr) {
      missing_.insert(parameter->name());
      continue;
    }
    CLEAVE_CHECK(info->shape == parameter->shape(), Code::kShape, parameter->name(),
                 ": the file has shape ", c10::IntArrayRef(info->shape), "; the model needs ",
                 c10::IntArrayRef(parameter->shape()), ", as its config.json says");
    add({parameter->name(), info->dtype, info->shape}, std::move(stored));
  }
  num_parameters_ = entries_.size();
  for (TensorInfo& info : files_->list()) {
    if (used.contains(info.name)) continue;
    if (model.ignores(info.name)) {
      left_out_.insert(info.name);
    } else if (!is_known_addition(info.name, model)) {
      unexpected.insert(info.name);
    } else if (info.name != "lm_head.weight" && !folder.meta_names) {
      StoredAs stored{.name = info.name};
      add(std::move(info), std::move(stored));
    }
  }
  if (must_fit) require_all(missing, unexpected, folder.path + " does not fit its config.json");
  left_out_.merge(unexpected);
}

ModelTensors ModelTensors::for_other_task(const ModelFolder& folder, Model& model) {
  const auto own = make_model(folder.config);
  (void)ModelTensors(folder, *own);  // throws if the files do not fit their own model
  return {folder, model, false};
}

void ModelTensors::add(TensorInfo info, StoredAs stored) {
  by_name_.emplace(info.name, entries_.size());
  entries_.push_back({std::move(info), std::move(stored)});
}

std::vector<TensorInfo> ModelTensors::list() const {
  std::vector<TensorInfo> list;
  for (const Entry& entry : entries_) list.push_back(entry.info);
  return list;
}

std::vector<TensorInfo> ModelTensors::additions() const {
  std::vector<TensorInfo> all = list();
  return {all.begin() + static_cast<std::ptrdiff_t>(num_parameters_), all.end()};
}

const TensorInfo* ModelTensors::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? nullptr : &entries_[at->second].info;
}

void ModelTensors::read_block(std::string_view name, std::span<const Slice> slices,
                              std::span<std::byte> out) const {
  const TensorInfo& info = at(name);
  const Entry& entry = entries_[by_name_.at(info.name)];
  if (entry.stored.interleaved_rows == 0) {
    files_->read_block(entry.stored.name, slices, out);
    return;
  }
  const uint64_t bytes = block_bytes(info, slices);
  CLEAVE_CHECK(bytes == out.size(), Code::kUsage, name, ": the block has ", bytes,
               " bytes; the memory for it ", out.size());
  read_interleaved(*files_, entry.stored, slices, out);
}

}  // namespace cleave
