#include "cleave/generate/runnable.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/byte_progress.h"
#include "cleave/base/hash.h"
#include "cleave/checkpoint/int4_tensors.h"
#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/format/manifest.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/generation_config.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/inference_weight.h"
#include "cleave/nn/layer.h"
#include "cleave/parallel/parallelize.h"
#include "cleave/planner/machine.h"
#include "cleave/train/fingerprint.h"

namespace cleave::inline generation {
namespace {

namespace fs = std::filesystem;

/// The dtype of the largest tensor; small tensors may have a wider one.
DType stored_dtype(const ModelFolder& folder) {
  const std::vector<TensorInfo> tensors = open_model_files(folder)->list();
  const auto largest = std::max_element(tensors.begin(), tensors.end(),
                                        [](const TensorInfo& a, const TensorInfo& b) {
                                          return block_bytes(a, {}) < block_bytes(b, {});
                                        });
  CLEAVE_CHECK(largest != tensors.end(), Code::kFormat, folder.path, " has no tensors");
  return largest->dtype;
}

at::ScalarType type_of(const std::string& flag, const ModelFolder& folder) {
  if (flag.empty()) {
    const DType stored = stored_dtype(folder);
    return stored == DType::kF16 ? at::kFloat : scalar_type(stored);
  }
  const auto dtype = dtype_from_name(flag);
  CLEAVE_CHECK(dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF64, Code::kUsage,
               "--dtype ", flag,
               " is not supported for inference; choose fp32, bf16, int8, int4, int4_sym or fp64");
  return scalar_type(*dtype);
}

/// The form of files that `cleave convert --dtype int4` wrote. GGUF files are read as fp32 unless
/// --dtype says otherwise.
WeightForm stored_form(const ModelFolder& folder) {
  if (is_gguf(folder.weights_path())) return WeightForm::kPlain;
  const auto files = open_model_files(folder);
  for (const TensorInfo& info : files->list()) {
    const auto layout = files->int4_layout(info.name);
    if (layout) return layout->has_mins ? WeightForm::kInt4 : WeightForm::kInt4Sym;
  }
  return WeightForm::kPlain;
}

/// The form without --dtype. With an adapter, matrices in 4 bits are read in int8: rounded to 4
/// bits again, most sums would be the old weights.
WeightForm default_form(const ModelFolder& folder) {
  const WeightForm stored = stored_form(folder);
  return stored == WeightForm::kPlain || folder.adapter.empty() ? stored : WeightForm::kInt8;
}

constexpr std::pair<std::string_view, WeightForm> kForms[] = {
    {"int8", WeightForm::kInt8}, {"int4", WeightForm::kInt4}, {"int4_sym", WeightForm::kInt4Sym}};

/// Changes the form of a layer's weight if it has another one. An embedding reads a shared weight.
void change_form(Linear& linear, WeightForm form, bool is_shared) {
  switch (form) {
    case WeightForm::kPlain:
      // If an embedding reads the weight too, the original stays in memory, so panels would double
      // it.
      if (is_shared || !to_panels(linear)) to_rows(linear);
      break;
    case WeightForm::kInt8:
      to_int8(linear);
      break;
    case WeightForm::kInt4:
    case WeightForm::kInt4Sym:
      if (!to_int4(linear, form == WeightForm::kInt4)) to_int8(linear);
      break;
  }
}

/// Converts the weights of a model's Linear layers to their form for inference.
class WeightConverter {
 public:
  WeightConverter(Layer& model, WeightForm form) : model_(model), form_(form) {
    model.walk([&](Layer& layer) {
      if (auto* linear = dynamic_cast<Linear*>(&layer)) {
        layers_[linear->weight().get()].push_back(linear);
      } else if (auto* table = dynamic_cast<Embedding*>(&layer)) {
        tables_[table->weight().get()].push_back(table);
      }
    });
  }

  /// Converts a weight that has been loaded, and frees the original unless an embedding reads it.
  /// Collective over the axis that shards the model.
  void convert(const Parameter& weight) {
    const auto layers = layers_.find(&weight);
    if (layers == layers_.end() || !weight.is_here()) return;
    const bool is_table = tables_.contains(&weight);
    for (Linear* linear : layers->second) {
      if (!linear->has_product()) change_form(*linear, form_, is_table);
    }
    if (!is_table && !is_multiplied(weight)) layers->second.front()->weight()->drop();
  }

  /// Call it once all weights are converted. With 8 and 4 bits, activations are fp32: casts the
  /// other weights to it, except for tables, which stay as they are in the file.
  void finish() {
    if (form_ == WeightForm::kPlain) return;
    model_.walk([](Layer& layer) {
      if (auto* attention = dynamic_cast<HasHeads*>(&layer)) attention->heads().cast_kv_bf16();
    });
    for (const auto& p : model_.parameters()) {
      const auto tables = tables_.find(p.get());
      if (tables != tables_.end() && !is_multiplied(*p)) {
        for (Embedding* table : tables->second) table->set_row_type(at::kFloat);
      } else if (p->is_readable()) {
        p->set_leaf(p->leaf().detach().to(at::kFloat));
      }
    }
  }

 private:
  /// Whether a Linear layer still reads the original.
  [[nodiscard]] bool is_multiplied(const Parameter& weight) const {
    const auto layers = layers_.find(&weight);
    return layers != layers_.end() &&
           !std::all_of(layers->second.begin(), layers->second.end(),
                        [](const Linear* linear) { return linear->has_product(); });
  }

  Layer& model_;
  WeightForm form_;
  std::unordered_map<const Parameter*, std::vector<Linear*>> layers_;  // by their weight
  std::unordered_map<const Parameter*, std::vector<Embedding*>> tables_;
};

}  // namespace

WeightForm weight_form(std::string_view flag) {
  for (const auto& [name, form] : kForms) {
    if (name == flag) return form;
  }
  return WeightForm::kPlain;
}

Runnable::Runnable(ModelFolder folder, const std::string& dtype, const std::string& device,
                   const std::vector<std::string>& tasks)
    : folder_(std::move(folder)),
      device_(device_of(device)),
      form_(dtype.empty() && device_.is_cpu() ? default_form(folder_) : weight_form(dtype)),
      dtype_(form_ == WeightForm::kPlain ? type_of(dtype, folder_) : at::kFloat) {
  CLEAVE_CHECK(form_ == WeightForm::kPlain || device_.is_cpu(), Code::kUsage, "--dtype ", dtype,
               " runs only on the CPU; give --device cpu, or another --dtype");
  if (form_ == WeightForm::kInt4 || form_ == WeightForm::kInt4Sym) {
    warn_of_lost_adapter(folder_, "--dtype " + dtype);
  }
  // cuDNN makes a plan for every new number of keys, which takes longer than the attention.
  at::globalContext().setSDPUseCuDNN(false);
  const auto model = make_model(folder_.config);
  std::string known;
  for (const std::string& task : tasks) known += (known.empty() ? "" : " or ") + task;
  CLEAVE_CHECK(std::find(tasks.begin(), tasks.end(), model->task()) != tasks.end(), Code::kUsage,
               folder_.path, " is a model for ", model->task(), "; this command needs one for ",
               known, "; give it to cleave ", model->task() == "lm" ? "generate" : "predict");
  facts_ = model->facts();
  task_ = task_of(*model);
  generation_ = read_generation_config(folder_, facts_);
}

Runnable::Runnable(const RunOptions& options, const std::vector<std::string>& tasks)
    : Runnable(ModelFolder::open(options.model, options.adapter), options.dtype, options.device,
               tasks) {
  kv_cache_dtype_ = options.kv_cache_dtype;
  CLEAVE_CHECK(kv_cache_dtype_ == "auto" || device_.is_cpu(), Code::kUsage, "--kv-cache-dtype ",
               kv_cache_dtype_, " runs only on the CPU; leave it out, or give --device cpu");
}

std::string Runnable::tokenizer_folder(const std::string& wanted) const {
  if (wanted == "bytes") return {};
  if (wanted.empty()) return tokenizer_source(folder_);
  return resolve_run_folder(local_model(wanted, "--tokenizer")).string();
}

std::shared_ptr<const Tokenizer> Runnable::tokenizer(const std::string& wanted,
                                                     bool is_needed) const {
  if (!wanted.empty()) {
    auto given =
        wanted == "bytes" ? byte_tokenizer() : load_model_tokenizer(tokenizer_folder(wanted));
    // The model's own tokenizer may have more ids: some have ids of images, which texts do not use.
    const bool fits = given->vocab_size() <= facts_.vocab_size || is_tokenizer_of(folder_, *given);
    CLEAVE_CHECK(fits, Code::kShape, "the tokenizer of ", "--tokenizer ", wanted, " has ",
                 given->vocab_size(), " ids, more than the model's vocab_size=", facts_.vocab_size,
                 "; give the model's tokenizer, or leave --tokenizer out if its folder has one");
    return given;
  }
  const std::string folder = tokenizer_folder(wanted);
  if (has_model_tokenizer(folder)) return load_model_tokenizer(folder);
  CLEAVE_CHECK(!is_needed, Code::kUsage, folder_.path,
               " has no tokenizer, which text needs; give a folder that has one, or bytes, with "
               "--tokenizer");
  return nullptr;
}

std::optional<Json> Runnable::run_state() const {
  fs::path state = fs::path(folder_.adapter) / kStateName;
  if (folder_.adapter.empty() || !fs::exists(state)) state = fs::path(folder_.path) / kStateName;
  if (!fs::exists(state)) return std::nullopt;
  return Json::parse_file(state.string());
}

bool Runnable::is_packing() const {
  const std::optional<Json> state = run_state();
  return state && state->bool_or("packing", false);
}

int64_t Runnable::seq_len(int64_t wanted, int64_t otherwise) const {
  const std::optional<Json> state = wanted == 0 ? run_state() : std::nullopt;
  if (state && state->has("seq_len")) {
    wanted = state->at("seq_len").as_int(1, facts_.max_positions);
  }
  if (wanted == 0) return std::min(otherwise, facts_.max_positions);
  CLEAVE_CHECK(wanted > 0 && wanted <= facts_.max_positions, Code::kShape, "--seq-len ", wanted,
               " must be from 1 to the model's ", facts_.max_positions, " positions");
  return wanted;
}

std::unique_ptr<Model> Runnable::load(const Axis& tp, const Axis& ep) const {
  return read_from(folder_.folders(), [&] { return read(tp, ep); });
}

std::unique_ptr<Model> Runnable::read(const Axis& tp, const Axis& ep) const {
  auto model = make_model(folder_.config);
  parallelize_module(*model, tp, model->plan());
  model->name_tree();
  share_out_experts(*model, {.pp = {}, .dp = {}, .tp = tp, .ep = ep}, RankTokens::kSame);
  // For 8 and 4 bits, load in the type of the file: a wider one would take more memory.
  const bool is_plain = form_ == WeightForm::kPlain;
  LoadHooks hooks;
  if (form_ == WeightForm::kInt4 || form_ == WeightForm::kInt4Sym) {
    hooks.take = [layers = int4_layers(*model)](const Parameter& weight,
                                                const TensorSource& files) {
      const auto layer = layers.find(&weight);
      return layer != layers.end() && load_int4(*layer->second, files);
    };
  }
  // A matrix is converted before the next one is read, so that only one is in memory twice.
  WeightConverter converter(*model, form_);
  if (device_.is_cpu()) hooks.loaded = [&](const Parameter& weight) { converter.convert(weight); };
  const bool is_shown = tp.rank() == 0 && ep.rank() == 0 && launched_world_size() == 0;
  if (is_shown) hooks.on_bytes = terminal_progress("loaded MiB");
  load_model(*model, folder_, is_plain ? dtype_ : scalar_type(stored_dtype(folder_)), hooks);
  move_to(*model, device_);
  if (device_.is_cpu()) converter.finish();
  set_kv_cache_dtype(*model, kv_cache_dtype_);
  return model;
}

std::string Runnable::dtype_name() const {
  for (const auto& [name, form] : kForms) {
    if (form == form_) return std::string(name);
  }
  return std::string(name(dtype_of(dtype_)));
}

void Runnable::add_model(ConfigFingerprint& fingerprint) const {
  add_config(fingerprint, folder_.config);
  const std::string name_of_folder = fs::path(folder_.path).filename().string();
  fingerprint.emplace_back("the checkpoint",
                           checkpoint_step(name_of_folder) ? name_of_folder : "none");
  read_from(folder_.folders(), [&] { add_weights(fingerprint, folder_); });
}

std::string checksum_of(const std::vector<std::vector<int64_t>>& rows) {
  return to_hex(hash_bytes(nlohmann::json(rows).dump()));
}

std::string checksum_of(const Tokenizer* tokenizer) {
  return tokenizer == nullptr ? "none" : to_hex(tokenizer->fingerprint());
}

void run_on_ranks(const RunOptions& options, const std::function<ConfigFingerprint()>& fingerprint,
                  const std::function<void(const RunAxes&)>& work) {
  const int ep = options.ep;
  const int tp = options.tp > 0 ? options.tp : std::max(1, launched_world_size() / ep);
  run_job({.num_ranks = tp * ep,
           .threads_per_rank = options.threads_per_rank,
           .ranks = {.timeout_s = options.timeout_s,
                     .flight_log_folder = temporary_flight_logs(),
                     .transport = options.transport,
                     .fast_sums = options.fast_sums},
           .device = options.device},
          [&](World& world) {
            const Mesh mesh = Mesh::build(world, {{"ep", ep}, {"tp", tp}});
            const Axis all = ep == 1 ? mesh["tp"] : mesh.flatten(world, {"ep", "tp"}, "all ranks");
            if (!world.ranks_are_threads()) check_consistent(fingerprint(), all);
            choose_gemm(options.gemm, all);
            work({.tp = mesh["tp"], .ep = mesh["ep"], .all = all, .mesh = mesh});
          });
}

void prepare_weights(Layer& model, WeightForm form) {
  WeightConverter converter(model, form);
  for (const auto& parameter : model.parameters()) converter.convert(*parameter);
  converter.finish();
}

void set_kv_cache_dtype(Layer& model, const std::string& dtype) {
  if (dtype == "auto") return;
  model.walk([&](Layer& layer) {
    auto* attention = dynamic_cast<HasHeads*>(&layer);
    if (attention == nullptr) return;
    dtype == "int8" ? attention->heads().cast_kv_int8() : attention->heads().cast_kv_bf16();
  });
}

}  // namespace cleave::inline generation
