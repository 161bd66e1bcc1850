#include "cleave/checkpoint/load.h"

#include <algorithm>
#include <set>

#include <ATen/ATen.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave {
namespace {

/// Reads one block in the file's dtype.
Tensor read_block(const Safetensors& files, const StoredTensor& stored,
                  const std::vector<Slice>& slices) {
  CLEAVE_CHECK(at::isFloatingType(scalar_type(stored.dtype)), Code::kFormat, "tensor '",
               stored.name, "' has dtype ", file_name(stored.dtype),
               "; a parameter needs F32, F64, BF16 or F16");
  std::vector<int64_t> shape = stored.shape;
  for (const Slice& slice : slices) {
    int64_t width = 0;
    for (const Range& range : slice.ranges) width += range.size();
    shape[static_cast<size_t>(slice.dim)] = width;
  }
  Tensor block = at::empty(shape, at::dtype(scalar_type(stored.dtype)));
  files.read_block(stored, slices, mutable_bytes_of(block));
  return block;
}

/// Reads what this rank's leaf holds, in the file's dtype.
Tensor read_held(const Safetensors& files, const StoredTensor& stored, const Parameter& parameter) {
  const auto blocks = held_blocks(parameter);
  if (blocks.size() == 1) {
    return read_block(files, stored, blocks[0]).view(parameter.leaf_shape());
  }
  std::vector<Tensor> parts{at::empty({0}, at::dtype(scalar_type(stored.dtype)))};
  for (const auto& slices : blocks) parts.push_back(read_block(files, stored, slices).flatten());
  return at::cat(parts);
}

/// Meta stores the two halves of each rotary pair side by side: rows 2i and 2i+1 of a head are
/// rows i and i + rows/2 here. Reads the heads that the ranges touch, then picks the rows.
Tensor read_interleaved(const Safetensors& files, const StoredTensor& stored,
                        const std::vector<Range>& ranges, int64_t head_rows) {
  std::vector<int64_t> heads;
  for (const Range& range : ranges) {
    for (int64_t head = range.begin / head_rows; head * head_rows < range.end; ++head) {
      if (range.size() > 0 && (heads.empty() || heads.back() < head)) heads.push_back(head);
    }
  }
  std::vector<Range> whole_heads;
  for (const int64_t head : heads) {
    whole_heads.push_back({head * head_rows, (head + 1) * head_rows});
  }
  const Tensor rows = read_block(files, stored, {{0, whole_heads}});
  std::vector<int64_t> picks;
  for (const Range& range : ranges) {
    for (int64_t row = range.begin; row < range.end; ++row) {
      const auto head = std::lower_bound(heads.begin(), heads.end(), row / head_rows);
      const int64_t within = row % head_rows;
      const int64_t half = head_rows / 2;
      const int64_t place = within < half ? 2 * within : 2 * (within - half) + 1;
      picks.push_back((head - heads.begin()) * head_rows + place);
    }
  }
  return rows.index_select(0, at::tensor(picks, at::kLong));
}

void check_shape(const StoredTensor& stored, const Parameter& parameter) {
  CLEAVE_CHECK(stored.shape == parameter.shape(), Code::kShape, parameter.name(),
               ": the file has shape ", c10::IntArrayRef(stored.shape), "; the model needs ",
               c10::IntArrayRef(parameter.shape()), ", as its config.json says");
}

/// Where the values of a parameter lie in the files; an older name where they have that.
StoredAs spelled(const Model& model, const ModelFolder& folder, const Safetensors& files,
                 const std::string& parameter) {
  const StoredAs as = folder.stored_as(parameter);
  if (files.find(as.name) != nullptr) return as;
  for (const std::string& name : model.other_names(parameter)) {
    if (files.find(name) != nullptr) return {.name = name};
  }
  return as;
}

/// Tables and duplicates that a file may hold although no parameter is read from them.
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

/// Tensors of the files that no parameter used: refused, or carried along where it is known what
/// they are.
std::vector<CarriedTensor> settle_names(const Model& model, const Safetensors& files,
                                        const std::set<std::string>& used,
                                        const std::set<std::string>& missing,
                                        const ModelFolder& folder) {
  std::vector<CarriedTensor> carried;
  std::set<std::string> unexpected;
  for (const StoredTensor& stored : files.tensors()) {
    if (used.contains(stored.name) || model.ignores(stored.name)) continue;
    if (!is_known_addition(stored.name, model)) {
      unexpected.insert(stored.name);
    } else if (stored.name != "lm_head.weight" && !folder.meta_names) {
      CarriedTensor tensor{stored, std::string(stored.end - stored.begin, '\0')};
      files.read_block(stored, {}, std::as_writable_bytes(std::span(tensor.bytes)));
      carried.push_back(std::move(tensor));
    }
  }
  if (missing.empty() && unexpected.empty()) return carried;
  std::string text = folder.path + " does not fit its config.json:";
  if (!missing.empty()) text += str(" ", missing.size(), " missing:", listed(missing));
  if (!unexpected.empty()) {
    text += str(missing.empty() ? " " : "; ", unexpected.size(),
                " that the model has no use for:", listed(unexpected));
  }
  throw Error(Code::kFormat, text);
}

const StoredTensor& state_of(const Safetensors& files, std::string_view part,
                             const Parameter& parameter) {
  const StoredTensor* stored = files.find(state_name(part, parameter.name()));
  CLEAVE_CHECK(stored != nullptr, Code::kFormat, "the optimizer's files have no ",
               state_name(part, parameter.name()),
               "; they are of another optimizer or another model");
  check_shape(*stored, parameter);
  return *stored;
}

void read_into(Tensor to, const Safetensors& files, const StoredTensor& stored,
               const Parameter& parameter) {
  to.copy_(read_held(files, stored, parameter));
}

}  // namespace

LoadResult load_model(Model& model, const ModelFolder& folder, at::ScalarType dtype) {
  model.name_tree();
  const Safetensors files = Safetensors::open(folder.path, folder.stem);
  const auto parameters = model.parameters();
  std::set<std::string> used, missing;
  for (const auto& parameter : parameters) {
    const StoredAs as = spelled(model, folder, files, parameter->name());
    const StoredTensor* stored = files.find(as.name);
    (stored == nullptr ? missing : used).insert(as.name);
    if (stored != nullptr) check_shape(*stored, *parameter);
  }
  LoadResult result;
  result.carried = settle_names(model, files, used, missing, folder);
  for (const auto& parameter : parameters) {
    const StoredAs as = spelled(model, folder, files, parameter->name());
    const StoredTensor& stored = files.at(as.name);
    Tensor block;
    if (as.interleaved_rows == 0) {
      block = read_held(files, stored, *parameter);
    } else {
      CLEAVE_CHECK(parameter->split_dim() == 0, Code::kShape, parameter->name(),
                   " is split on dim ", parameter->split_dim(),
                   "; from a folder with Meta's names it can be split on dim 0 alone");
      block = read_interleaved(files, stored, parameter->ranges(), as.interleaved_rows);
      const Range range = parameter->flat_range();
      block = block.flatten().narrow(0, range.begin, range.size()).view(parameter->leaf_shape());
    }
    result.bytes_read += block.nbytes();
    parameter->set_leaf(block.to(dtype));
  }
  return result;
}

void load_optimizer(Optimizer& optimizer, const std::string& folder) {
  const Safetensors files = Safetensors::open(folder, kOptimizerStem);
  const at::NoGradGuard no_grad;
  size_t num_read = 0;
  for (const Optimizer::State& state : optimizer.states()) {
    const Parameter& parameter = *state.parameter;
    if (files.find(state_name(kMaster, parameter.name())) != nullptr) {
      read_into(parameter.leaf().detach(), files, state_of(files, kMaster, parameter), parameter);
      ++num_read;
    }
    if (!state.exp_avg.defined()) continue;
    read_into(state.exp_avg, files, state_of(files, kExpAvg, parameter), parameter);
    read_into(state.exp_avg_sq, files, state_of(files, kExpAvgSq, parameter), parameter);
    num_read += 2;
  }
  CLEAVE_CHECK(num_read == files.tensors().size(), Code::kFormat, folder,
               ": the optimizer's files have ", files.tensors().size(), " tensors; this one needs ",
               num_read, ", they are of another optimizer or another model");
  const auto& metadata = files.files()[0].metadata;
  const auto steps = metadata.find(std::string(kNumSteps));
  CLEAVE_CHECK(steps != metadata.end() && !steps->second.empty() && steps->second.size() < 19 &&
                   steps->second.find_first_not_of("0123456789") == std::string::npos,
               Code::kFormat, folder, ": the optimizer's files do not say their num_steps");
  optimizer.set_num_steps(std::stoll(steps->second));
}

}  // namespace cleave
