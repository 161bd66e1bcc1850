#include "cleave/planner/published_runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

#include "cleave/base/error.h"
#include "cleave/text/csv.h"

namespace cleave::inline planner {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kMostCount = 1e9;

/// A record with its header.
class Row {
 public:
  Row(const CsvReader& table, std::vector<std::string> fields)
      : place_(table.place()), fields_(std::move(fields)) {
    for (size_t i = 0; i < table.header().size(); ++i) columns_[table.header()[i]] = i;
  }
  const std::string& text(const std::string& column) const {
    const auto found = columns_.find(column);
    CLEAVE_CHECK(found != columns_.end(), Code::kFormat, place_, ": the table has no column '",
                 column, "'; the format is that of docs/clusters.md");
    return fields_[found->second];
  }
  /// Whether an optional column contains `part`.
  bool may_have(const std::string& column, std::string_view part) const {
    return columns_.contains(column) && has(column, part);
  }
  bool has(const std::string& column, std::string_view part) const {
    return text(column).find(part) != std::string::npos;
  }
  const std::string& place() const { return place_; }
  /// A number above 0; 0 if the field is empty.
  double number(const std::string& column) const {
    const std::string& field = text(column);
    if (field.empty()) return 0;
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    CLEAVE_CHECK(
        error == std::errc() && end == field.data() + field.size() && value >= 0 && value < 1e15,
        Code::kFormat, place_, ": ", column, " is '", field,
        "'; expected a number of 0 or more, or nothing");
    return value;
  }
  int64_t count(const std::string& column) const {
    const double value = number(column);
    // Products of two counts fit in 63 bits.
    CLEAVE_CHECK(value == std::floor(value) && value <= kMostCount, Code::kFormat, place_, ": ",
                 column, " is ", value, "; expected a whole number up to 1e9");
    return static_cast<int64_t>(value);
  }
  /// A number at the start of a field that may continue with words.
  int64_t leading_count(const std::string& column) const {
    const std::string& field = text(column);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool is_right = field.empty() || (error == std::errc() && value >= 0 &&
                                            static_cast<double>(value) <= kMostCount);
    CLEAVE_CHECK(is_right, Code::kFormat, place_, ": ", column, " is '", field,
                 "'; expected a whole number up to 1e9, or nothing");
    return value;
  }

 private:
  std::string place_;
  std::vector<std::string> fields_;
  std::map<std::string, size_t> columns_;
};

struct DeviceName {
  const char* part;  ///< of the column device
  const char* cluster;
};
// The first that the column contains.
constexpr std::array<DeviceName, 13> kDevices = {{{"Selene", "selene"},
                                                  {"Omni-Path", "jean-zay"},
                                                  {"A100 (8 a node)", "a100-hdr"},
                                                  {"A100-40GB", "a100-40gb"},
                                                  {"A100", "a100-80gb"},
                                                  {"H100-96GB", "h100-96gb"},
                                                  {"DGX-H100", "dgx-h100"},
                                                  {"H100", "h100-80gb"},
                                                  {"H200", "h200"},
                                                  {"GB300", "gb300"},
                                                  {"GB200", "gb200"},
                                                  {"B200", "b200"},
                                                  {"MI300X", "mi300x"}}};

std::string cluster_of(const Row& row) {
  for (const DeviceName& d : kDevices) {
    if (row.has("device", d.part)) return d.cluster;
  }
  return "";
}

bool is_gated(const std::string& model) {
  return model.starts_with("llama") || model.starts_with("Qwen") || model.starts_with("mistral");
}

TransformerSize size_of(const Row& row, int64_t pp) {
  TransformerSize m{.layers = row.count("layers"),
                    .hidden = row.count("hidden"),
                    .heads = row.count("heads"),
                    .kv_heads = row.count("kv_heads"),
                    .ffn = row.count("ffn"),
                    .vocab = row.count("vocab")};
  if (m.heads == 0 || m.hidden == 0) return m;
  if (m.kv_heads == 0) m.kv_heads = m.heads;
  m.head_dim = m.hidden / m.heads;
  m.gated = is_gated(row.text("model"));
  m.tied = !m.gated;
  if (m.vocab == 0) m.vocab = 51200;  // GPT-2's, padded as Megatron pads it
  if (m.ffn == 0) m.ffn = 4 * m.hidden;
  if (m.layers == 0) {
    // From the parameters; published runs give each stage the same number of layers.
    const double embedding = static_cast<double>(m.vocab) * static_cast<double>(m.hidden);
    const double layers = (row.number("params_B") * 1e9 - embedding) / m.layer_parameters();
    CLEAVE_CHECK(layers <= kMostCount, Code::kFormat, row.place(), ": params_B is ",
                 row.text("params_B"), ", which makes ", layers, " layers of this width");
    m.layers = pp * std::max<int64_t>(1, std::llround(layers / static_cast<double>(pp)));
  }
  return m;
}

Keep recompute_of(const Row& row) {
  const std::string& text = row.text("recompute");
  if (text.empty() || text == "none") return Keep::kAll;
  if (text.starts_with("full") || text == "yes") return Keep::kFull;
  return row.has("recompute", "per op") || row.has("recompute", "default") ? Keep::kSelectiveOps
                                                                           : Keep::kSelective;
}

MatrixType type_of(const Row& row) {
  const std::string& text = row.text("precision");
  if (text.find("fp8") != std::string::npos || text.find("FP8") != std::string::npos ||
      text.find("float8") != std::string::npos) {
    return MatrixType::kFp8;
  }
  return text.starts_with("fp32") ? MatrixType::kFp32 : MatrixType::kBf16;
}

/// torchtitan compiles the loss too since 2025.
Kernels kernels_of(const Row& row) {
  if (row.may_have("notes", "eager")) return Kernels::kEager;
  if (!row.may_have("notes", "torch.compile")) return Kernels::kOwn;
  return row.number("year") >= 2025 ? Kernels::kCompiledAll : Kernels::kCompiledLayers;
}

/// Sharding, and the bytes per parameter that follow from the software.
void set_states(const Row& row, ClusterRun& r) {
  const bool is_recent = row.number("year") >= 2023 && !row.has("recompute", "Megatron");
  if (row.has("sharding", "FSDP")) {
    r.sharding = Sharding::kFsdp;
    // Composer's PURE keeps and sums gradients in bf16.
    r.gradient_bytes = r.sync_bytes = row.has("sharding", "PURE") ? 2 : 4;
    return;
  }
  if (row.has("sharding", "ZeRO-1")) {
    r.sharding = Sharding::kZero1;
    const bool fp32_gradients = row.has("precision", "fp32 gradients");
    r.gradient_bytes = fp32_gradients ? 6 : 2;  // bf16 gradients, and their fp32 sums
    r.sync_bytes = fp32_gradients ? 4 : 2;
    r.scratch_bytes = 4;  // DeepSpeed copies its share of the gradients to fp32
    return;
  }
  if (row.has("sharding", "distributed optimizer")) r.sharding = Sharding::kZero1;
  r.gradient_bytes = r.sync_bytes = 4;
  r.overlaps_dp = is_recent;
  r.scatters_p2p = true;
}

double memory_of(const Row& row) {
  const std::string& text = row.text("mem_per_device");
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || !(value > 0 && value < 1e15)) return 0;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  // "GB" is GiB here: PyTorch and nvidia-smi, whose numbers people publish, count those.
  return value * (unit.find("MiB") == std::string_view::npos ? kGiB : kGiB / 1024);
}

void set_layout(const Row& row, PublishedRun& out) {
  ClusterRun& r = out.run;
  const auto degree = [&](const char* column) {
    return static_cast<int>(std::clamp<int64_t>(row.count(column), 1, 1 << 20));
  };
  r.tp = degree("tp");
  r.pp = degree("pp");
  r.dp = degree("dp");
  r.cp = degree("cp");
  const double devices = 1.0 * r.tp * r.pp * r.dp * r.cp;
  CLEAVE_CHECK(devices <= 1e9, Code::kFormat, row.place(), ": tp x pp x dp x cp is ", devices,
               " devices; expected at most 1e9");
  r.virtual_stages = degree("vp");
  r.sequence_parallel = row.text("sp") == "1";
  r.global_batch = row.count("global_batch");
  r.seq_len = row.count("seq");
  r.micro_batch = row.leading_count("micro_batch");
  if (row.has("micro_batch", "local batch")) {
    r.micro_batch = std::max<int64_t>(1, r.micro_batch / r.pp);
    out.assumed.emplace_back("a micro-batch for each stage");
  } else if (r.micro_batch == 0) {
    r.micro_batch = 1;
    out.assumed.emplace_back("micro-batch 1");
  }
}

/// Whether the words of sharding and recompute are known.
bool knows_words(const Row& row, const std::string& column) {
  const std::string& text = row.text(column);
  if (text.empty() || text == "none") return true;
  if (column == "recompute") {
    return text.starts_with("full") || text.starts_with("selective") || text == "yes";
  }
  return row.has(column, "FSDP") || row.has(column, "ZeRO-1") ||
         row.has(column, "distributed optimizer");
}

std::string unsupported(const Row& row, const PublishedRun& p) {
  for (const char* column : {"sharding", "recompute"}) {
    if (!knows_words(row, column)) return str(column, " '", row.text(column), "' is unknown");
  }
  if (p.cluster.empty()) return "device '" + row.text("device") + "' is unknown";
  if (row.has("precision", "FP4")) return "FP4 is not modelled";
  if (row.text("kind") == "LoRA") return "LoRA is not modelled";
  if (row.count("ep") > 1) return "expert parallelism is not modelled";
  if (p.size.hidden == 0 || p.size.head_dim == 0) return "the row gives no sizes of the model";
  if (row.text("layers").empty() && row.number("params_B") == 0) {
    return "the row gives neither layers nor parameters";
  }
  if (p.run.global_batch == 0 || p.run.seq_len == 0) return "the row gives no batch";
  return "";
}

PublishedRun run_of(const Row& row) {
  PublishedRun out;
  out.id = row.text("id");
  out.source = row.text("source");
  out.model = row.text("model");
  out.cluster = cluster_of(row);
  set_layout(row, out);
  out.size = size_of(row, out.run.pp);
  out.run.recompute = recompute_of(row);
  if (row.text("recompute").empty()) out.assumed.emplace_back("no recompute");
  out.run.kernels = kernels_of(row);
  out.run.type = type_of(row);
  set_states(row, out.run);
  out.unsupported = unsupported(row, out);
  out.step_s = row.number("step_s");
  const double speed = row.number("tokens_per_s_per_device");
  if (out.step_s == 0 && speed > 0) {
    out.step_s = static_cast<double>(out.run.global_batch * out.run.seq_len) / speed /
                 static_cast<double>(out.run.devices());
  }
  const double tflops = row.number("tflops_per_device");
  if (out.step_s == 0 && tflops > 0 && row.text("tflops_counts") == "model") {
    out.step_s = out.size.train_flops_per_token(out.run.seq_len) *
                 static_cast<double>(out.run.global_batch * out.run.seq_len) / tflops / 1e12 /
                 static_cast<double>(out.run.devices());
  }
  out.out_of_memory = row.has("mem_per_device", "OOM");
  if (!out.out_of_memory) out.memory_bytes = memory_of(row);
  return out;
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::string& path) {
  CsvReader table(path);
  std::vector<PublishedRun> out;
  while (auto fields = table.next()) out.push_back(run_of(Row(table, std::move(*fields))));
  CLEAVE_CHECK(!out.empty(), Code::kFormat, path, ": the table has no rows; give at least one run");
  return out;
}

}  // namespace cleave::inline planner
