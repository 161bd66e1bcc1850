#include "cleave/checkpoint/load.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/file/model_path.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/quantized_leaf.h"

namespace cleave::inline checkpoint {
namespace {

/// Reads the values of this rank's leaves. Type conversions share one buffer: a new one for each
/// tensor would fragment the heap between the leaves.
class LeafReader {
 public:
  explicit LeafReader(const TensorSource& files) : files_(files) {}

  /// In the file's dtype; valid until the next call.
  Tensor borrow(const TensorInfo& stored, const Parameter& parameter) {
    const std::vector<int64_t> shape = parameter.leaf_shape();
    const int64_t bytes = c10::multiply_integers(shape) * item_bytes(stored.dtype);
    if (!buffer_.defined() || buffer_.numel() < bytes) {
      buffer_ = Tensor();  // free it before the larger one is allocated
      buffer_ = at::empty({bytes}, at::kByte);
    }
    const auto type = float_type(stored);
    Tensor held = buffer_.narrow(0, 0, bytes).view(type).view(shape);
    read(stored, parameter, held);
    return held;
  }

  /// A new tensor of `dtype`.
  Tensor take(const TensorInfo& stored, const Parameter& parameter, at::ScalarType dtype) {
    if (float_type(stored) != dtype) return borrow(stored, parameter).to(dtype);
    Tensor held = at::empty(parameter.leaf_shape(), dtype);
    read(stored, parameter, held);
    return held;
  }

 private:
  static at::ScalarType float_type(const TensorInfo& stored) {
    const at::ScalarType type = scalar_type(stored.dtype);
    CLEAVE_CHECK(at::isFloatingType(type), Code::kFormat, "tensor '", stored.name, "' has dtype ",
                 file_name(stored.dtype), "; a parameter needs F32, F64, BF16 or F16");
    return type;
  }

  /// Uses all threads of the rank: most of the time goes into copies from the page cache and into
  /// the pages of new memory, which the kernel clears.
  void read(const TensorInfo& stored, const Parameter& parameter, Tensor held) const {
    struct Chunk {
      std::vector<Slice> slices;
      std::span<std::byte> to;
    };
    std::vector<Chunk> chunks;
    std::span<std::byte> rest = mutable_bytes_of(held);
    const auto add = [&](const std::vector<Slice>& slices) {
      chunks.push_back({slices, rest.first(block_bytes(stored, slices))});
      rest = rest.subspan(chunks.back().to.size());
    };
    for (const auto& slices : held_blocks(parameter)) {
      for_each_chunk(stored, slices, add, kChunkBytes);
    }
    at::parallel_for(0, static_cast<int64_t>(chunks.size()), 1, [&](int64_t begin, int64_t end) {
      for (const Chunk& chunk : std::span(chunks).subspan(static_cast<size_t>(begin),
                                                          static_cast<size_t>(end - begin))) {
        files_.read_block(stored.name, chunk.slices, chunk.to);
      }
    });
  }

  static constexpr uint64_t kChunkBytes = uint64_t{1} << 20;

  const TensorSource& files_;
  Tensor buffer_;
};

const TensorInfo& state_of(const TensorSource& files, std::string_view part,
                           const Parameter& parameter) {
  const TensorInfo* stored = files.find(state_name(part, parameter.name()));
  CLEAVE_CHECK(stored != nullptr, Code::kFormat, "the optimizer's files have no ",
               state_name(part, parameter.name()),
               "; they are of another optimizer or another model");
  CLEAVE_CHECK(stored->shape == parameter.shape(), Code::kShape, stored->name,
               ": the file has shape ", c10::IntArrayRef(stored->shape), "; the model needs ",
               c10::IntArrayRef(parameter.shape()));
  return *stored;
}

/// A number of steps in the metadata, if the key is there.
std::optional<int64_t> steps_in(const Safetensors& files, std::string_view key) {
  const auto& metadata = files.files()[0].metadata;
  const auto steps = metadata.find(std::string(key));
  if (steps == metadata.end()) return std::nullopt;
  const std::string& text = steps->second;
  CLEAVE_CHECK(!text.empty() && text.size() < 19 &&
                   text.find_first_not_of("0123456789") == std::string::npos,
               Code::kFormat, files.path(), ": the optimizer's files have no valid ", key);
  return std::stoll(text);
}

/// Refuses files with averaged weights for an optimizer that keeps none, and the reverse.
void check_ema(const Optimizer& optimizer, const Parameters& parameters, const Safetensors& files) {
  if (parameters.empty()) return;
  const bool has_ema = files.find(state_name(kEma, parameters.front()->name())) != nullptr;
  CLEAVE_CHECK(
      has_ema == optimizer.has_ema(), Code::kUsage, files.path(),
      has_ema ? " has averaged weights, and this run has no --ema to continue them; give --ema "
                "with a decay"
              : " has no averaged weights, because the run was started without --ema; "
                "resume it without --ema");
}

/// The --optimizer that wrote the files, if it is not this one; else empty. AdamW keeps two moments
/// of every tensor, Muon one of a matrix, SGD none. A file that lacks a single one is damaged.
std::string_view other_optimizer(const Optimizer& optimizer, const Parameters& parameters,
                                 const Safetensors& files) {
  const auto count = [&](std::string_view part) {
    return std::count_if(files.tensors().begin(), files.tensors().end(), [&](const auto& tensor) {
      return tensor.name.starts_with(state_name(part, ""));
    });
  };
  const auto first = count(kExpAvg), second = count(kExpAvgSq);
  const bool is_muon = first - second > 1;
  const bool wants_muon = optimizer.has_moments() &&
                          std::any_of(parameters.begin(), parameters.end(), [&](const auto& p) {
                            return !optimizer.has_second_moment(*p);
                          });
  if (first == 0) return optimizer.has_moments() ? "sgd" : "";
  if (is_muon) return wants_muon ? "" : "muon";
  const bool is_adam = first == second;
  return is_adam && (wants_muon || !optimizer.has_moments()) ? "adamw or adam" : "";
}

/// Refuses the files of another --optimizer. Files of no optimizer are refused later.
void check_kind(const Optimizer& optimizer, const Parameters& parameters,
                const Safetensors& files) {
  const bool is_state = files.files()[0].metadata.contains(std::string(kNumSteps));
  if (parameters.empty() || !is_state) return;
  const std::string_view other = other_optimizer(optimizer, parameters, files);
  CLEAVE_CHECK(
      other.empty(), Code::kUsage, files.path(),
      " has the state of another optimizer, and a run keeps its optimizer; give --optimizer ",
      other);
}

void load_steps(Optimizer& optimizer, const Parameters& parameters, const Safetensors& files) {
  const auto steps = steps_in(files, kNumSteps);
  CLEAVE_CHECK(steps, Code::kFormat, files.path(), ": the optimizer's files have no valid ",
               kNumSteps);
  optimizer.set_num_steps(*steps);
  for (const auto& parameter : parameters) {
    const auto own = steps_in(files, state_name(kNumSteps, parameter->name()));
    if (own) optimizer.set_num_steps(*parameter, *own);
  }
}

/// The bytes of this rank's part of a parameter in the files.
uint64_t file_bytes(const Parameter& parameter, const TensorInfo& stored) {
  uint64_t bytes = 0;
  for (const auto& slices : held_blocks(parameter)) bytes += block_bytes(stored, slices);
  return bytes;
}

/// Whether this rank fills a parameter from the model's files.
bool is_filled(const Parameter& parameter) {
  return parameter.ownership() != Parameter::Ownership::kNotOwned && !parameter.is_adapter();
}

/// Reports after each parameter how many bytes of the files this rank has read.
class LoadProgress {
 public:
  LoadProgress(Model& model, const ModelTensors& files, const OnBytes& on_bytes)
      : files_(files), on_bytes_(on_bytes) {
    if (!on_bytes_) return;
    for (const auto& parameter : model.parameters()) {
      const bool counts = is_filled(*parameter) && !files.missing().contains(parameter->name());
      if (counts) total_ += file_bytes(*parameter, files.at(parameter->name()));
    }
  }
  void note(const Parameter& parameter) {
    if (!on_bytes_ || files_.missing().contains(parameter.name())) return;
    on_bytes_(done_ += file_bytes(parameter, files_.at(parameter.name())), total_);
  }

 private:
  const ModelTensors& files_;
  const OnBytes& on_bytes_;
  uint64_t done_ = 0, total_ = 0;
};

/// Fills one parameter. Returns the bytes that it took from the files.
uint64_t fill_parameter(Parameter& parameter, LeafReader& reader, const TensorInfo& stored,
                        at::ScalarType dtype) {
  if (parameter.is_quantized()) {
    fill_quantized(parameter, reader.take(stored, parameter, at::kFloat));
  } else {
    parameter.set_leaf(reader.take(stored, parameter, dtype));
  }
  return file_bytes(parameter, stored);
}

LoadResult fill(Model& model, const ModelTensors& files, const MaterializeOptions& fresh,
                const LoadHooks& hooks = {}) {
  model.check_own_rank();
  LoadResult result{.fresh = files.missing(), .left_out = files.left_out()};
  for (TensorInfo& info : files.additions()) {
    CarriedTensor tensor{std::move(info), ""};
    tensor.bytes.resize(block_bytes(tensor.info, {}));
    files.read_block(tensor.info.name, {}, std::as_writable_bytes(std::span(tensor.bytes)));
    result.carried.push_back(std::move(tensor));
  }
  LeafReader reader(files);
  LoadProgress progress(model, files, hooks.on_bytes);
  for (const auto& parameter : model.parameters()) {
    if (!is_filled(*parameter)) continue;
    const at::ScalarType dtype = parameter->leaf_type(fresh.dtype);
    if (result.fresh.contains(parameter->name())) {
      parameter->set_leaf(parameter->initial_value(fresh.seed, dtype));
    } else if (!hooks.take || !hooks.take(*parameter, files)) {
      result.bytes_read += fill_parameter(*parameter, reader, files.at(parameter->name()), dtype);
    }
    progress.note(*parameter);
    if (hooks.loaded) hooks.loaded(*parameter);
  }
  return result;
}

}  // namespace

LoadResult load_model(Model& model, const ModelFolder& folder, at::ScalarType dtype,
                      const LoadHooks& hooks) {
  model.name_tree();
  return fill(model, ModelTensors(folder, model, dtype_of(dtype)), {.dtype = dtype}, hooks);
}

LoadResult load_for_other_task(Model& model, const ModelFolder& folder, at::ScalarType dtype,
                               uint64_t seed) {
  model.name_tree();
  return fill(model, ModelTensors::for_other_task(folder, model, dtype_of(dtype)),
              {.seed = seed, .dtype = dtype});
}

std::vector<std::string> new_layers(Model& model, const ModelFolder& folder) {
  model.name_tree();
  const ModelTensors files = ModelTensors::for_other_task(folder, model, DType::kF32);
  std::vector<std::string> paths;
  std::string last = "-";         // of no layer
  model.walk([&](Layer& layer) {  // parents first
    const Parameters own = layer.parameters();
    const bool is_new = !own.empty() && std::all_of(own.begin(), own.end(), [&](const auto& p) {
      return files.missing().contains(p->name());
    });
    const bool is_in_last = layer.path() == last || layer.path().starts_with(last + ".");
    if (!is_new || layer.path().empty() || is_in_last) return;
    paths.push_back(last = layer.path());
  });
  return paths;
}

void load_adapter(Model& model, const std::string& folder, at::ScalarType dtype) {
  const Safetensors files = Safetensors::open(folder, kAdapterStem);
  std::set<std::string> missing, unexpected;
  for (const TensorInfo& info : files.list()) unexpected.insert(info.name);
  const Parameters adapters = trained_of(model.parameters());
  for (const auto& p : adapters) {
    const std::string name = adapter_name(p->name());
    if (unexpected.erase(name) == 0) missing.insert(name);
  }
  require_all(missing, unexpected,
              files.path() + " has adapters of other layers; give the same --lora-targets",
              kNamesOfAdapter);
  for (const auto& p : adapters) {
    const TensorInfo& stored = files.at(adapter_name(p->name()));
    CLEAVE_CHECK(stored.shape == p->shape(), Code::kFormat, stored.name, ": the file has shape ",
                 c10::IntArrayRef(stored.shape), "; the adapter of this model needs ",
                 c10::IntArrayRef(p->shape()));
  }
  LeafReader reader(files);
  for (const auto& p : adapters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
    p->set_leaf(reader.take(files.at(adapter_name(p->name())), *p, dtype));
  }
}

void load_weights(const Parameters& parameters, const TensorSource& files) {
  std::set<std::string> missing, unexpected;
  for (const TensorInfo& info : files.list()) unexpected.insert(info.name);
  for (const auto& p : parameters) {
    if (unexpected.erase(p->name()) == 0) missing.insert(p->name());
  }
  require_all(missing, unexpected, files.path() + " does not fit the model");
  for (const auto& p : parameters) {
    const TensorInfo& stored = files.at(p->name());
    CLEAVE_CHECK(stored.shape == p->shape(), Code::kShape, p->name(), ": the file has shape ",
                 c10::IntArrayRef(stored.shape), "; the model needs ",
                 c10::IntArrayRef(p->shape()));
  }
  const at::NoGradGuard no_grad;
  LeafReader reader(files);
  for (const auto& p : parameters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
    p->leaf().detach().copy_(reader.borrow(files.at(p->name()), *p));
  }
}

void load_optimizer(Optimizer& optimizer, Model& model, const std::string& folder) {
  load_optimizer(optimizer, trained_of(model.parameters()),
                 Safetensors::open(resolve_run_folder(folder), kOptimizerStem));
}

void load_optimizer(Optimizer& optimizer, const Parameters& parameters, const Safetensors& files) {
  const at::NoGradGuard no_grad;
  std::map<const Parameter*, const Optimizer::State*> mine;
  for (const Optimizer::State& state : optimizer.states()) mine[state.parameter.get()] = &state;
  check_kind(optimizer, parameters, files);
  check_ema(optimizer, parameters, files);
  LeafReader reader(files);
  size_t num_needed = 0;
  for (const auto& parameter : parameters) {
    const auto state = mine.find(parameter.get());
    const auto take = [&](std::string_view part, const Tensor& to) {
      const TensorInfo& stored = state_of(files, part, *parameter);
      if (to.defined()) to.copy_(reader.borrow(stored, *parameter));
      ++num_needed;
    };
    const bool is_mine = state != mine.end();
    if (files.find(state_name(kMaster, parameter->name())) != nullptr) {
      take(kMaster, is_mine ? parameter->leaf().detach() : Tensor());
    }
    const auto take_state = [&](std::string_view part, Tensor Optimizer::State::*member) {
      take(part, is_mine ? state->second->*member : Tensor());
    };
    if (optimizer.has_ema()) take_state(kEma, &Optimizer::State::ema);
    if (optimizer.has_moments()) take_state(kExpAvg, &Optimizer::State::exp_avg);
    if (optimizer.has_second_moment(*parameter)) {
      take_state(kExpAvgSq, &Optimizer::State::exp_avg_sq);
    }
  }
  CLEAVE_CHECK(num_needed == files.tensors().size(), Code::kFormat, files.path(),
               ": the optimizer's files have ", files.tensors().size(),
               " tensors; this optimizer needs ", num_needed,
               "; they are of another optimizer or another model");
  load_steps(optimizer, parameters, files);
}

}  // namespace cleave::inline checkpoint
