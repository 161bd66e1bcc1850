#include "cleave/checkpoint/adapter.h"

#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/checkpoint/adapter_config.h"
#include "cleave/checkpoint/ema_tensors.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/linear.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kA = "lora_A.weight", kB = "lora_B.weight",
                           kMagnitudes = "lora_magnitude_vector", kBase = "base_layer.weight";

Tensor whole_tensor(const TensorSource& files, const std::string& name, at::ScalarType type) {
  const TensorInfo& info = files.at(name);
  Tensor values = at::empty(info.shape, scalar_type(info.dtype));
  files.read_block(name, {}, {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values.to(type);
}

Tensor part_of(const Tensor& whole, const Slice& slice) {
  std::vector<Tensor> pieces;
  for (const Range& range : slice.ranges) {
    pieces.push_back(whole.narrow(slice.dim, range.begin, range.size()));
  }
  return pieces.empty() ? whole.narrow(slice.dim, 0, 0) : at::cat(pieces, slice.dim);
}

}  // namespace

std::string adapter_name(const std::string& parameter) {
  return str(kPrefix, parameter);
}

AdapterDelta::AdapterDelta(const fs::path& folder, Model& model, std::set<std::string>* left_out,
                           bool is_averaged)
    : files_(open_tensors(folder, kAdapterStem)) {
  if (is_averaged) {
    files_ = std::make_unique<EmaTensors>(std::move(files_), folder.string(), kPrefix);
  }
  model.name_tree();
  const AdapterSettings settings = read_adapter(folder);
  std::set<std::string> missing, unexpected;
  for (const TensorInfo& info : files_->list()) {
    CLEAVE_CHECK(info.name.find(".lora_embedding_") == std::string::npos, Code::kFormat,
                 files_->path(), " has an adapter of an embedding, ", info.name,
                 ", and Cleave reads those of linear layers; ", kMergeInPeft);
    unexpected.insert(info.name);
  }
  model.walk([&](Layer& layer) {
    const auto* linear = dynamic_cast<const Linear*>(&layer);
    if (linear == nullptr) return;
    missing.merge(add_target(*linear, settings.of(linear->path()), unexpected));
  });
  if (settings.replaces_weights()) add_wholes(model, settings, unexpected);
  const std::string problem = files_->path() + " is not an adapter of this model";
  if (targets_.empty() && missing.empty()) {
    const std::string why = unexpected.empty()
                                ? ": the file has no tensors"
                                : ": the model has no layer for " + *unexpected.begin();
    throw Error(Code::kFormat, problem + why);
  }
  if (left_out != nullptr) left_out->merge(unexpected);
  require_all(missing, left_out == nullptr ? unexpected : std::set<std::string>{}, problem,
              kNamesOfAdapter);
}

std::set<std::string> AdapterDelta::add_target(const Linear& linear, const LoraOptions& lora,
                                               std::set<std::string>& unexpected) {
  const std::string& weight = linear.weight()->name();
  const std::string stem = adapter_name(weight.substr(0, weight.rfind('.') + 1));
  Target target{.a = str(stem, kA),
                .b = str(stem, kB),
                .magnitudes = lora.is_dora ? str(stem, kMagnitudes) : "",
                .is_transposed = linear.is_transposed(),
                .scale = lora.scale()};
  std::vector<int64_t> shape = linear.weight()->shape();  // [out, in]
  if (target.is_transposed) std::swap(shape[0], shape[1]);
  std::map<std::string, std::vector<int64_t>> shapes{{target.a, {lora.rank, shape[1]}},
                                                     {target.b, {shape[0], lora.rank}}};
  if (lora.is_dora) shapes[target.magnitudes] = {shape[0]};
  std::set<std::string> absent;
  for (const auto& [name, expected] : shapes) {
    if (unexpected.erase(name) == 0) absent.insert(name);
  }
  if (absent.size() == shapes.size()) return {};
  if (!absent.empty()) return absent;
  for (const auto& [name, expected] : shapes) require_shape(name, expected);
  const std::string base = str(stem, kBase);
  if (unexpected.erase(base) > 0) {
    require_shape(base, linear.weight()->shape());
    target.base = base;
  }
  targets_.emplace(weight, target);
  return {};
}

void AdapterDelta::add_wholes(Model& model, const AdapterSettings& settings,
                              std::set<std::string>& unexpected) {
  const auto add = [&](const Parameter& parameter, const std::string& name) {
    if (unexpected.erase(name) == 0) return;
    require_shape(name, parameter.shape());
    wholes_.emplace(parameter.name(), name);
  };
  constexpr std::string_view kBias = "bias";
  for (const auto& p : model.parameters()) {
    const std::string name = adapter_name(p->name());
    const bool is_bias = name.ends_with(str(".", kBias));
    if (is_bias || !settings.lora.trained_layers.empty()) add(*p, name);
    // A layer with an adapter keeps its bias in PEFT's base_layer.
    if (is_bias && settings.has_biases) {
      add(*p, str(name.substr(0, name.size() - kBias.size()), "base_layer.", kBias));
    }
  }
}

std::string AdapterDelta::whole(const std::string& parameter) const {
  const auto at = wholes_.find(parameter);
  return at == wholes_.end() ? "" : at->second;
}

void AdapterDelta::require_shape(const std::string& name,
                                 const std::vector<int64_t>& expected) const {
  const TensorInfo& info = files_->at(name);
  CLEAVE_CHECK(info.shape == expected, Code::kFormat, files_->path(),
               " is not an adapter of this model: ", name, " has shape ",
               c10::IntArrayRef(info.shape), "; the model needs ", c10::IntArrayRef(expected));
  CLEAVE_CHECK(at::isFloatingType(scalar_type(info.dtype)), Code::kFormat, files_->path(), ": ",
               name, " has dtype ", file_name(info.dtype), "; expected F32, F64, BF16 or F16");
}

void AdapterDelta::require_same_base(const TensorInfo& stored, const BlockReader& read_base) const {
  const auto at = targets_.find(stored.name);
  if (at == targets_.end() || at->second.base.empty()) return;
  const TensorInfo& copy = files_->at(at->second.base);
  const BlockReader read_copy = [&](std::span<const Slice> slices, std::span<std::byte> out) {
    files_->read_block(copy.name, slices, out);
  };
  CLEAVE_CHECK(have_same_values(stored, read_base, copy, read_copy, {}), Code::kFormat,
               files_->path(), " is an adapter of another model: ", copy.name,
               " differs from this model's ", stored.name);
}

AdapterDelta::Factors AdapterDelta::factors_of(const Target& target, std::span<const Slice> slices,
                                               at::ScalarType type) const {
  // The weight gets left right: B A, or its transpose A^T B^T.
  Tensor left = whole_tensor(*files_, target.b, type);
  Tensor right = whole_tensor(*files_, target.a, type);
  if (target.is_transposed) std::swap(left, right);
  if (target.is_transposed) {
    left = left.t();
    right = right.t();
  }
  for (const Slice& slice : slices) {
    Tensor& side = slice.dim == 0 ? left : right;
    side = part_of(side, slice);
  }
  return {.left = left, .right = right};
}

Tensor AdapterDelta::row_factors(const TensorInfo& stored, const Target& target,
                                 at::ScalarType type, const BlockReader& read_base) const {
  const std::scoped_lock lock(mutex_);
  const auto [at, is_new] = row_factors_.try_emplace(stored.name);
  if (!is_new && at->second.defined()) return at->second;
  const int row_dim = target.is_transposed ? 1 : 0;
  Tensor squares = at::zeros({stored.shape.at(static_cast<size_t>(row_dim))}, at::kDouble);
  std::vector<std::byte> bytes;
  int64_t first = 0;  // of dim 0
  for_each_chunk(stored, {}, [&](const std::vector<Slice>& slices) {
    bytes.resize(block_bytes(stored, slices));
    read_base(slices, bytes);
    const auto [left, right] = factors_of(target, slices, type);
    const Tensor base = at::from_blob(bytes.data(), {left.size(0), right.size(1)},
                                      at::dtype(scalar_type(stored.dtype)));
    const Tensor sum = at::addmm(base.to(type), left, right, 1, target.scale).to(at::kDouble);
    const Tensor own = sum.square().sum(1 - row_dim);
    (row_dim == 0 ? squares.narrow(0, first, own.size(0)) : squares).add_(own);
    first += left.size(0);
  });
  const Tensor norms = squares.sqrt();
  const Tensor magnitudes = whole_tensor(*files_, target.magnitudes, at::kDouble);
  at->second = (magnitudes / norms.masked_fill(norms.eq(0), 1)).to(type);
  return at->second;
}

void AdapterDelta::merge(const TensorInfo& stored, std::span<const Slice> slices,
                         std::span<std::byte> out, const BlockReader& read_base) const {
  const auto at = targets_.find(stored.name);
  if (at == targets_.end() || out.empty()) return;
  const at::NoGradGuard no_grad;
  const Target& target = at->second;
  const at::ScalarType type = scalar_type(stored.dtype);
  const at::ScalarType wide = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto [left, right] = factors_of(target, slices, wide);
  Tensor values = at::from_blob(out.data(), {left.size(0), right.size(1)}, at::dtype(type));
  Tensor sum = at::addmm(values.to(wide), left, right, 1, target.scale);
  if (!target.magnitudes.empty()) {
    const int row_dim = target.is_transposed ? 1 : 0;
    Tensor factors = row_factors(stored, target, wide, read_base);
    for (const Slice& slice : slices) {
      if (slice.dim == row_dim) factors = part_of(factors, {.dim = 0, .ranges = slice.ranges});
    }
    sum = sum * factors.unsqueeze(1 - row_dim);
  }
  values.copy_(sum);
}

}  // namespace cleave::inline checkpoint
