#include <algorithm>
#include <charconv>
#include <filesystem>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "cleave/base/byte_progress.h"
#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/checkpoint/gguf_tensors.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file_lock.h"
#include "cleave/format/gguf_writer.h"
#include "cleave/format/tensor_source.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/generation_config.h"
#include "cleave/model/gguf/added_tokens.h"
#include "cleave/model/gguf/model_config.h"
#include "cleave/model/gguf/names.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/text/utf8.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kQ4 = "q4_k_m", kQ8 = "q8_0";

/// A tensor of the source, and which tensor of the file has it.
struct Source {
  TensorInfo info;
  GgufName name;
  size_t target = 0;
};

/// Whether llama.cpp keeps the tensor in fp32: its kernels need it, or it has few elements.
bool stays_fp32(const std::string& name, size_t num_dims) {
  return num_dims < 2 || name.ends_with("_norm.weight") || name == "position_embd.weight" ||
         name.ends_with(".ffn_gate_inp.weight");
}

/// The number in "blk.NUMBER."; -1 if there is none.
int64_t layer_of(const std::string& name) {
  int64_t layer = -1;
  if (name.starts_with("blk.")) {
    std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  }
  return layer;
}

/// llama.cpp's rule which layers get more bits: the first and last eighth, and every third between.
bool has_more_bits(int64_t layer, int64_t num_layers) {
  const int64_t eighth = num_layers / 8;
  return layer < eighth || layer >= 7 * num_layers / 8 || (layer - eighth) % 3 == 2;
}

/// How the tensors of one file are stored.
struct Recipe {
  std::string dtype;  ///< of ConvertOptions
  int64_t num_layers = 0;
  bool is_tied = false;  ///< the embedding is also the output matrix

  /// The type of a tensor whose rows are whole blocks.
  [[nodiscard]] GgufType type_of(const std::string& name, const TensorInfo& info) const {
    if (stays_fp32(name, info.shape.size())) return GgufType::kF32;
    if (dtype == kQ8) return GgufType::kQ8_0;
    if (dtype == kQ4) return quantized_type(name);
    const DType plain = dtype.empty() ? info.dtype : dtype_from_name(dtype).value_or(DType::kI8);
    if (plain == DType::kBf16) return GgufType::kBF16;
    if (plain == DType::kF16) return GgufType::kF16;
    CLEAVE_CHECK(plain == DType::kF32 || (dtype.empty() && plain == DType::kF64), Code::kUsage,
                 "dtype '", dtype, "' is not possible in GGUF; choose fp32, bf16, fp16, ", kQ8,
                 " or ", kQ4);
    return GgufType::kF32;
  }

  /// general.file_type, which only informs.
  [[nodiscard]] int64_t number(GgufType largest) const {
    if (dtype == kQ4) return 15;
    if (dtype == kQ8) return 7;
    return largest == GgufType::kF16 ? 1 : largest == GgufType::kBF16 ? 32 : 0;
  }

 private:
  [[nodiscard]] GgufType quantized_type(const std::string& name) const {
    const int64_t layer = layer_of(name);
    const bool is_output = name == "output.weight" || (is_tied && name == "token_embd.weight");
    const bool is_chosen = name.ends_with(".attn_v.weight") || name.ends_with(".ffn_down.weight") ||
                           name.ends_with(".ffn_down_exps.weight");
    const bool has_six = is_output || name.ends_with(".attn_qkv.weight") ||
                         (is_chosen && has_more_bits(layer, num_layers));
    return has_six ? GgufType::kQ6_K : GgufType::kQ4_K;
  }
};

/// The type, or a wider one whose blocks fit into a row.
GgufType fitting(GgufType type, int64_t row) {
  if (row % block_of(type).elements == 0) return type;
  return row % block_of(GgufType::kQ8_0).elements == 0 ? GgufType::kQ8_0 : GgufType::kF16;
}

/// As quantize(), on all threads: each block depends only on its own values.
void quantize_in_parallel(const GgufTensor& to, std::span<const float> values,
                          std::span<std::byte> blocks) {
  constexpr int64_t kGrain = 64;  // blocks: about a tenth of a millisecond
  const GgufBlock layout = block_of(to.type);
  const auto bytes = static_cast<size_t>(layout.bytes);
  const auto elements = static_cast<size_t>(layout.elements);
  const std::string what = str("tensor '", to.name, "'");
  at::parallel_for(0, static_cast<int64_t>(blocks.size() / bytes), kGrain,
                   [&](int64_t begin, int64_t end) {
                     const auto first = static_cast<size_t>(begin);
                     const auto count = static_cast<size_t>(end - begin);
                     quantize(to.type, values.subspan(first * elements, count * elements),
                              blocks.subspan(first * bytes, count * bytes), what);
                   });
}

/// Writes one file.
class GgufOutput {
 public:
  GgufOutput(const ConvertOptions& options, const ModelFolder& from)
      : options_(options),
        from_(from),
        family_(gguf_family(from.config)),
        target_(fs::absolute(options.to).lexically_normal()) {
    require_new();
    CLEAVE_CHECK(target_.has_filename(), Code::kUsage, options.to,
                 " is a folder; give the name of the new file, such as model.gguf");
    CLEAVE_CHECK(fs::is_directory(target_.parent_path()), Code::kIo, target_.parent_path().string(),
                 " is not a folder; make it first, so that '", options.to,
                 "' can be written in it");
  }
  ~GgufOutput() {
    std::error_code ignored;  // the error that is thrown already matters more
    if (!partial_.empty()) fs::remove(partial_, ignored);
  }
  GgufOutput(const GgufOutput&) = delete;
  GgufOutput& operator=(const GgufOutput&) = delete;

  ConvertReport write() {
    if (options_.dtype == kQ4) warn_of_lost_adapter(from_, "--dtype " + options_.dtype);
    const auto model = make_model(from_.config);
    const ModelTensors source(from_, *model, merged_dtype(options_.dtype));
    choose_tensors(source, *model);
    const size_t num_copied = tensors_.size();
    const std::vector<GgufFactors> factors = gguf_rope_factors(from_.config);
    for (const GgufFactors& one : factors) {
      GgufTensor& tensor = tensors_.emplace_back();
      tensor.name = one.name;
      tensor.shape = {std::ssize(one.values)};
    }
    ModelFacts facts = model->facts();
    facts.eos_ids = read_generation_config(from_, facts).eos_ids;  // GGUF has one place for both
    const GgufPlan plan(metadata(facts), tensors_);
    const FileLock lock(target_.parent_path(), target_.filename());
    require_new();
    require_free_space(target_.parent_path(), plan.total_bytes() + kDiskBlock);
    require_intact_source(from_);
    create(plan);
    total_ = plan.total_bytes();
    for (const Source& from : sources_) copy(source, from, plan.tensors()[from.target]);
    for (size_t i = 0; i < factors.size(); ++i) {
      file_.write_at(plan.tensors()[num_copied + i].begin,
                     std::as_bytes(std::span(factors[i].values)));
    }
    file_.sync();
    file_.close();
    rename_durably(partial_, target_);
    partial_.clear();
    return {.num_tensors = static_cast<int64_t>(tensors_.size()),
            .num_files = 1,
            .bytes = plan.total_bytes(),
            .num_wider = num_wider_};
  }

 private:
  void require_new() const {
    CLEAVE_CHECK(!fs::exists(target_), Code::kIo, options_.to,
                 " already exists; remove it or choose another file");
  }

  void choose_tensors(const ModelTensors& source, const Model& model) {
    recipe_ = {.dtype = options_.dtype,
               .num_layers = model.facts().num_layers,
               .is_tied = source.find("lm_head.weight") == nullptr};
    std::vector<TensorInfo> parameters = source.list();
    parameters.resize(parameters.size() - source.additions().size());
    for (TensorInfo& info : parameters) {
      const auto name = gguf_name(family_, info.name);
      CLEAVE_CHECK(name, Code::kUsage, "parameter ", info.name, " has no name in GGUF; a model of ",
                   "type ", family_.model_type, " has no such tensor in llama.cpp");
      const size_t target = target_of(info, *name);
      sources_.push_back({std::move(info), *name, target});
    }
  }

  /// The index of the file's tensor that has the parameter. The first expert adds the tensor, and
  /// each other one enlarges it.
  size_t target_of(const TensorInfo& info, const GgufName& name) {
    const auto [at, is_new] = targets_.emplace(name.name, tensors_.size());
    if (!is_new) {
      ++tensors_[at->second].shape[0];
      return at->second;
    }
    GgufTensor tensor;
    tensor.name = name.name;
    tensor.shape = info.shape;
    if (name.is_transposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
    const TensorInfo stored{.name = name.name, .dtype = info.dtype, .shape = tensor.shape};
    const GgufType type = recipe_.type_of(name.name, stored);
    tensor.type = is_quantized(type) ? fitting(type, tensor.shape.back()) : type;
    if (tensor.type != type) ++num_wider_;
    if (name.expert >= 0) tensor.shape.insert(tensor.shape.begin(), 1);
    tensors_.push_back(std::move(tensor));
    return at->second;
  }

  [[nodiscard]] GgufMetadata metadata(const ModelFacts& facts) const {
    const std::string source = tokenizer_source(from_);
    const std::vector<NamedFile> files = model_tokenizer_files(source);
    const auto loaded = has_model_tokenizer(source) ? load_model_tokenizer(source) : nullptr;
    const GgufTokenizer tokenizer = {.files = files, .tokenizer = loaded.get()};
    GgufMetadata metadata(options_.to);
    const fs::path from = fs::absolute(options_.from).lexically_normal();
    const fs::path last = from.has_filename() ? from.filename() : from.parent_path().filename();
    // A folder's name may be any bytes; a string of GGUF is UTF-8.
    const std::string name = replace_bad_utf8((is_gguf(from) ? last.stem() : last).string());
    add_gguf_config(metadata, from_.config, gguf_model_name(name, tokenizer));
    const auto largest = std::max_element(
        tensors_.begin(), tensors_.end(), [](const GgufTensor& a, const GgufTensor& b) {
          return c10::multiply_integers(a.shape) < c10::multiply_integers(b.shape);
        });
    metadata.add_u32("general.file_type", recipe_.number(largest->type));
    const bool has_blocks = std::any_of(tensors_.begin(), tensors_.end(),
                                        [](const GgufTensor& t) { return is_quantized(t.type); });
    if (has_blocks) metadata.add_u32("general.quantization_version", 2);
    add_gguf_tokenizer(metadata, tokenizer, facts);
    return metadata;
  }

  void create(const GgufPlan& plan) {
    const fs::path partial = target_.string() + std::string(kPartialSuffix);
    fs::remove(partial);  // of a dead writer: this one holds the lock
    file_ = File::create(partial);
    partial_ = partial;
    file_.allocate(plan.total_bytes());
    file_.write_at(0, std::as_bytes(std::span(plan.head())));
  }

  /// Copies a tensor in pieces of whole rows of the file, and whole heads of an interleaved one.
  void copy(const TensorSource& source, const Source& from, const GgufTensor& to) {
    const bool is_expert = from.name.expert >= 0;
    const std::span<const int64_t> shape = std::span(to.shape).subspan(is_expert ? 1 : 0);
    const int64_t num_rows = shape.empty() ? 1 : shape[0];
    const int64_t row = c10::multiply_integers(shape) / std::max<int64_t>(1, num_rows);
    const GgufBlock block = block_of(to.type);
    const auto row_bytes = static_cast<uint64_t>(row / block.elements * block.bytes);
    const int64_t head = from.name.is_interleaved ? head_rows() : 1;
    const auto most =
        static_cast<int64_t>(kTensorChunkBytes / sizeof(float)) / std::max<int64_t>(row, 1);
    const int64_t step = std::max<int64_t>(1, most / head) * head;
    const int64_t rows_before = is_expert ? from.name.expert * num_rows : 0;
    for (int64_t first = 0; first < num_rows; first += step) {
      if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
      const int64_t count = std::min(step, num_rows - first);
      Tensor values = rows(source, from, {first, first + count});
      if (from.name.added != 0) values = values.to(at::kDouble).add_(from.name.added);
      const uint64_t bytes = static_cast<uint64_t>(count) * row_bytes;
      file_.write_at(to.begin + static_cast<uint64_t>(rows_before + first) * row_bytes,
                     encoded(values, to, bytes));
      on_bytes_(done_ += bytes, total_);
    }
  }

  [[nodiscard]] int64_t head_rows() const {
    const Json& config = from_.config;
    return config.int_or(
        "head_dim", config.at("hidden_size").as_int() / config.at("num_attention_heads").as_int());
  }

  /// Rows of the file's tensor, in the source's type.
  Tensor rows(const TensorSource& source, const Source& from, Range range) {
    std::vector<Slice> slices;
    if (!from.info.shape.empty()) slices = {{from.name.is_transposed ? 1 : 0, {range}}};
    bytes_.resize(block_bytes(from.info, slices));
    source.read_block(from.info.name, slices, bytes_);
    const int64_t count = static_cast<int64_t>(bytes_.size()) / item_bytes(from.info.dtype);
    Tensor values = at::from_blob(bytes_.data(), {count}, at::dtype(scalar_type(from.info.dtype)));
    if (from.name.is_transposed) return values.view({-1, range.size()}).t().contiguous();
    if (!from.name.is_interleaved) return values;
    // From the two halves of a head to adjacent pairs.
    const int64_t head = head_rows();
    const int64_t num_heads = range.size() / head;
    return values.view({num_heads, 2, head / 2, count / range.size()}).transpose(1, 2).contiguous();
  }

  std::span<const std::byte> encoded(const Tensor& values, const GgufTensor& to, uint64_t bytes) {
    if (!is_quantized(to.type)) {
      converted_ = values.to(scalar_type(to.dtype)).contiguous();
      check_range(values, converted_, to.name);
      return {static_cast<const std::byte*>(converted_.const_data_ptr()), converted_.nbytes()};
    }
    const Tensor floats = values.to(at::kFloat).contiguous();
    blocks_.resize(static_cast<size_t>(bytes));
    quantize_in_parallel(to, {floats.const_data_ptr<float>(), static_cast<size_t>(floats.numel())},
                         blocks_);
    return blocks_;
  }

  const ConvertOptions& options_;
  const ModelFolder& from_;
  const GgufFamily& family_;
  fs::path target_, partial_;
  Recipe recipe_;
  std::vector<Source> sources_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> targets_;  // tensors_ by name
  int64_t num_wider_ = 0;                            // of ConvertReport
  File file_;
  OnBytes on_bytes_ = terminal_progress("converted MiB");
  uint64_t done_ = 0, total_ = 0;  // of the file
  // Reused for every piece: allocating each time would fragment the heap.
  std::vector<std::byte> bytes_, blocks_;
  Tensor converted_;
};

}  // namespace

ConvertReport write_gguf(const ConvertOptions& options, const ModelFolder& from) {
  return GgufOutput(options, from).write();
}

}  // namespace cleave::inline checkpoint
