#include "cleave/planner/published_runs.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <regex>

#include "cleave/base/error.h"
#include "cleave/model/model.h"
#include "cleave/planner/cluster_command.h"
#include "cleave/text/csv.h"

namespace cleave::inline planner {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kMostCount = 1e9;

struct Column {
  const char *name, *ours;
};
/// vTrain's table of one host has these columns; their runs on several hosts are in our format.
constexpr std::array<Column, 11> kVtrainColumns = {{{"# GPUs", "devices"},
                                                    {"global batch", "global_batch"},
                                                    {"micro batch", "micro_batch"},
                                                    {"hidden size", "hidden"},
                                                    {"attention heads", "heads"},
                                                    {"# layers", "layers"},
                                                    {"sequence length", "seq"},
                                                    {"tensor parallelism", "tp"},
                                                    {"data parallelism", "dp"},
                                                    {"pipeline parallelism", "pp"},
                                                    {"iteration time (ms)", "step_ms"}}};
/// Fields that all rows of that table share. The recompute is that of the runs on several hosts.
constexpr std::array<Column, 20> kVtrainFields = {
    {{"source", "vTrain (MICRO 2024) ground truth, one host"},
     {"kind", "trial"},
     {"year", "2024"},
     {"model", "gpt"},
     {"device", "A100 (8 a node)"},
     {"precision", "fp16"},
     {"recompute", "full (Megatron)"},
     {"params_B", ""},
     {"kv_heads", ""},
     {"ffn", ""},
     {"vocab", ""},
     {"sp", ""},
     {"vp", ""},
     {"cp", ""},
     {"ep", ""},
     {"sharding", ""},
     {"step_s", ""},
     {"tokens_per_s_per_device", ""},
     {"tflops_per_device", ""},
     {"mem_per_device", ""}}};

/// A record with its header.
class Row {
 public:
  Row(const CsvReader& table, std::vector<std::string> fields, size_t number)
      : place_(table.place()), fields_(std::move(fields)) {
    for (size_t i = 0; i < table.header().size(); ++i) columns_[table.header()[i]] = i;
    is_vtrain_ = columns_.contains(kVtrainColumns[0].name);
    if (!is_vtrain_) return;
    for (const Column& c : kVtrainColumns) {
      if (const auto found = columns_.find(c.name); found != columns_.end()) {
        columns_[c.ours] = found->second;
      }
    }
    for (const Column& c : kVtrainFields) add_field(c.name, c.ours);
    add_field("id", std::to_string(number));
  }
  [[nodiscard]] bool is_vtrain() const { return is_vtrain_; }
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
  void add_field(const std::string& column, std::string value) {
    columns_[column] = fields_.size();
    fields_.push_back(std::move(value));
  }

  std::string place_;
  std::vector<std::string> fields_;
  std::map<std::string, size_t> columns_;
  bool is_vtrain_ = false;
};

struct DeviceName {
  const char* part;  ///< of the column device
  const char* cluster;
};
// The first that the column contains.
constexpr std::array<DeviceName, 15> kDevices = {{{"Selene", "selene"},
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
                                                  {"MI300X", "mi300x"},
                                                  {"A64FX", "a64fx"},
                                                  {"TPU v4", "tpu-v4"}}};

/// The constants of h100-80gb are those of PyTorch's FSDP, of dgx-h100 those of Megatron, which
/// fuses its kernels.
std::string cluster_of(const Row& row) {
  const bool is_megatron = row.count("tp") > 1 || !row.has("sharding", "FSDP");
  for (const DeviceName& d : kDevices) {
    if (!row.has("device", d.part)) continue;
    const std::string cluster = d.cluster;
    return cluster == "h100-80gb" && is_megatron ? "dgx-h100" : cluster;
  }
  return "";
}

bool is_gated(const std::string& model) {
  return model.starts_with("llama") || model.starts_with("Qwen") || model.starts_with("mistral") ||
         model.starts_with("palm");
}

std::string lower_case(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

/// MosaicML's models, which have no dropout and a fused loss in 16 bits (llm-foundry's defaults).
bool is_mpt(const Row& row) {
  return row.text("model").starts_with("mpt-");
}

/// The preset of a model whose sizes the table lacks, as "qwen3-30b-a3b" for "Qwen3_30B_a3B"; empty
/// if there is none.
std::string preset_of(const Row& row) {
  if (row.number("hidden") != 0) return "";
  std::string name = lower_case(row.text("model"));
  name = name.substr(0, name.find(' '));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::vector<std::string> known = preset_names();
  return std::find(known.begin(), known.end(), name) == known.end() ? "" : name;
}

TransformerSize size_of(const Row& row, int64_t pp) {
  if (const std::string preset = preset_of(row); !preset.empty()) {
    return transformer_size(preset_config(preset, 0));
  }
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
  m.dropout = !is_mpt(row);
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
  if (text.find("FP4") != std::string::npos) return MatrixType::kFp4;
  return text.starts_with("fp32") ? MatrixType::kFp32 : MatrixType::kBf16;
}

void set_kernels(const Row& row, ClusterRun& r) {
  if (row.may_have("notes", "eager")) {
    r.kernels = Kernels::kEager;
  } else if (row.may_have("notes", "torch.compile")) {
    r.kernels = Kernels::kCompiled;
    r.fused_loss = row.number("year") >= 2025;  // since 2025, torchtitan compiles the loss too
  }
  if (is_mpt(row)) r.fused_loss = true;
}

/// Sharding, and the bytes per parameter that follow from the software.
void set_states(const Row& row, ClusterRun& r) {
  if (row.text("kind") == "LoRA") {
    r.frozen = true;
    r.gradient_bytes = r.sync_bytes = r.state_bytes = 0;
    r.scatters_p2p = true;
    return;
  }
  if (r.type == MatrixType::kFp32) {  // the weights are the master weights
    r.element_bytes = r.weight_bytes = 4;
    r.state_bytes = 8;
  }
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
  // Megatron gathers parameters beside forward with its distributed optimizer only.
  if (row.has("sharding", "distributed optimizer") ||
      row.may_have("notes", "overlap-param-gather")) {
    r.sharding = Sharding::kZero1;
  }
  r.gradient_bytes = r.sync_bytes = 4;
  r.overlaps_dp = is_recent;
  r.scatters_p2p = true;
}

bool is_letter(char c) {
  return c >= 'a' && c <= 'z';
}

/// Whether a lower-case text says that a run had too little memory.
bool says_out_of_memory(const std::string& text) {
  if (text.find("out of memory") != std::string::npos) return true;
  const size_t at = text.find("oom");
  return at != std::string::npos && (at == 0 || !is_letter(text[at - 1])) &&
         (at + 3 == text.size() || !is_letter(text[at + 3]));
}

/// Sets the memory of a device, or that it did not suffice. "GB" is GiB here: PyTorch and
/// nvidia-smi, whose numbers people publish, count those.
void set_memory(const Row& row, PublishedRun& out) {
  const std::string text = lower_case(row.text("mem_per_device"));
  out.out_of_memory = says_out_of_memory(text);
  if (text.empty() || out.out_of_memory) return;
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  std::string_view unit(end, static_cast<size_t>(last - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const auto* const unit_end = std::find_if_not(unit.begin(), unit.end(), is_letter);
  unit = unit.substr(0, static_cast<size_t>(unit_end - unit.begin()));
  const bool is_gib = unit == "gib" || unit == "gb";
  const bool is_mib = unit == "mib" || unit == "mb";
  CLEAVE_CHECK(error == std::errc() && (is_gib || is_mib) && value > 0 && value < 1e9,
               Code::kFormat, row.place(), ": mem_per_device is '", row.text("mem_per_device"),
               "'; expected a size in GiB or MiB, such as 52 GiB, or OOM, or nothing");
  out.memory_bytes = value * (is_gib ? kGiB : kGiB / 1024);
}

/// Data-parallel devices: what the other degrees leave of all devices, where the row gives those.
int64_t data_parallel(const Row& row, int64_t others) {
  const int64_t devices = row.may_have("devices", "") ? row.count("devices") : 0;
  const int64_t dp = std::max<int64_t>(1, row.count("dp"));
  if (devices == 0) return dp;
  if (row.text("dp").empty()) {
    CLEAVE_CHECK(devices % others == 0, Code::kFormat, row.place(), ": ", devices,
                 " devices are not a multiple of tp x pp x cp, which is ", others);
    return devices / others;
  }
  CLEAVE_CHECK(others * dp == devices, Code::kFormat, row.place(), ": tp x pp x dp x cp is ",
               others * dp, ", but devices is ", devices);
  return dp;
}

/// Megatron's interleaved schedule has two stages a rank or more.
void set_stages(const Row& row, PublishedRun& out) {
  ClusterRun& r = out.run;
  r.virtual_stages = static_cast<int>(std::clamp<int64_t>(row.count("vp"), 1, 1 << 20));
  if (r.pp == 1 || !row.text("vp").empty() || !row.may_have("schedule", "interleaved")) return;
  r.virtual_stages = 2;
  out.assumed.emplace_back("2 virtual stages");
}

void set_layout(const Row& row, PublishedRun& out) {
  ClusterRun& r = out.run;
  const auto degree = [&](const char* column) {
    return static_cast<int>(std::clamp<int64_t>(row.count(column), 1, 1 << 20));
  };
  r.tp = degree("tp");
  r.pp = degree("pp");
  r.cp = degree("cp");
  r.ep = degree("ep");
  const double others = 1.0 * r.tp * r.pp * r.cp;
  const double devices = others * static_cast<double>(std::max<int64_t>(1, row.count("dp")));
  CLEAVE_CHECK(devices <= kMostCount, Code::kFormat, row.place(), ": tp x pp x dp x cp is ",
               devices, " devices; expected at most 1e9");
  r.dp = static_cast<int>(data_parallel(row, static_cast<int64_t>(others)));
  r.whole_experts = r.ep > r.dp;
  set_stages(row, out);
  r.overlaps_tp = row.may_have("notes", "tp-comm-overlap");
  r.sequence_parallel = row.text("sp") == "1" || r.overlaps_tp;  // which Megatron needs for it
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

/// What NVIDIA's recipes set that the table does not have (NVIDIA-NeMo/Megatron-Bridge,
/// training/comm_overlap.py and scripts/performance/configs): messages between interleaved stages
/// and Llama's sums over tp overlap, the latter not with NVFP4; gradients are bf16; tp does not
/// split experts (expert_tensor_parallel_size 1), and the exchange of tokens with the experts of
/// Qwen3 235B on H100 overlaps (moe_a2a_overlap).
void set_recipe(const Row& row, PublishedRun& out) {
  if (!row.has("source", "NeMo Container")) return;
  ClusterRun& r = out.run;
  const bool is_train = row.text("kind") == "train";
  r.overlaps_pp = r.virtual_stages > 1;
  r.overlaps_tp = is_train && r.tp > 1 && row.has("model", "llama") && r.type != MatrixType::kFp4;
  r.whole_experts = r.tp > 1 && out.size.experts > 0;
  r.overlaps_ep = row.has("model", "Qwen3_235B") && row.has("device", "H100");
  if (is_train) r.gradient_bytes = r.sync_bytes = 2;
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

/// Whether a model has experts, whose sizes the table lacks: by names such as "mixtral-8x7b" and
/// "Qwen3_30B_a3B", or by twice the parameters of a dense model with these sizes.
bool has_experts(const Row& row, const TransformerSize& m) {
  static const std::regex names("moe|mixtral|[0-9]x[0-9.]+b|[-_]a[0-9.]+b");
  if (std::regex_search(lower_case(row.text("model")), names)) return true;
  return m.layers > 0 && m.head_dim > 0 && row.number("params_B") * 1e9 > 2 * m.parameters();
}

/// Whether the precision of the row is one whose matrix speed machines have.
bool knows_precision(const Row& row) {
  const std::string text = lower_case(row.text("precision"));
  if (text.empty()) return true;
  for (const char* known : {"16", "32", "fp8", "float8", "fp4"}) {
    if (text.find(known) != std::string::npos) return true;
  }
  return false;
}

/// Why the sizes of the model and the batch are not known; empty if they are.
std::string missing_size(const Row& row, const PublishedRun& p) {
  if (p.size.hidden == 0 || p.size.head_dim == 0) return "the row gives no sizes of the model";
  const bool has_preset = !preset_of(row).empty();
  if (!has_preset && p.size.hidden % p.size.heads != 0) {
    return str("hidden ", p.size.hidden, " is not a multiple of ", p.size.heads, " heads");
  }
  if (!has_preset && row.text("layers").empty() && row.number("params_B") == 0) {
    return "the row gives neither layers nor parameters";
  }
  if (p.run.global_batch == 0 || p.run.seq_len == 0) return "the row gives no batch";
  return "";
}

/// Why no software can have run the row: mostly a number in a wrong column. Empty if some can.
std::string impossible(const PublishedRun& p) {
  const ClusterRun& r = p.run;
  if (p.size.heads % r.tp != 0)
    return str("tp ", r.tp, " does not divide the ", p.size.heads, " heads");
  if (r.pp > p.size.layers) return str(r.pp, " stages, but ", p.size.layers, " layers");
  if (r.global_batch % (r.dp * r.micro_batch) == 0) return "";
  return str("batch ", r.global_batch, " is not a multiple of dp ", r.dp, " x micro-batch ",
             r.micro_batch);
}

std::string unsupported(const Row& row, const PublishedRun& p) {
  for (const char* column : {"sharding", "recompute"}) {
    if (!knows_words(row, column)) return str(column, " '", row.text(column), "' is unknown");
  }
  if (row.may_have("schedule", "") && !row.text("schedule").empty() &&
      !row.has("schedule", "1f1b") && !row.has("schedule", "interleaved")) {
    return str("schedule '", row.text("schedule"), "' is unknown");
  }
  if (!knows_precision(row)) return "precision '" + row.text("precision") + "' is unknown";
  if (p.cluster.empty()) return "device '" + row.text("device") + "' is unknown";
  if (p.size.experts == 0 && (p.run.ep > 1 || has_experts(row, p.size))) {
    return "the table has no sizes of experts";
  }
  const int sharing = p.run.whole_experts ? p.run.tp * p.run.dp : p.run.dp;
  if (p.run.ep > 1 && (p.size.experts % p.run.ep != 0 || sharing % p.run.ep != 0)) {
    return str("ep ", p.run.ep, " does not divide the ", p.size.experts, " experts and ",
               p.run.whole_experts ? "tp x dp " : "dp ", sharing);
  }
  const std::string missing = missing_size(row, p);
  return missing.empty() ? impossible(p) : missing;
}

/// Flops of a token with those that backward recomputes, and with attention's products in full, as
/// Megatron's formulas count them (arXiv:2104.04473; arXiv:2205.05198, appendix A).
double hardware_flops_per_token(const TransformerSize& m, const ClusterRun& r) {
  const double attention = 12 * static_cast<double>(m.layers * m.heads * m.head_dim * r.seq_len);
  const double layers = 6 * static_cast<double>(m.layers) * m.layer_parameters();
  const double all = m.train_flops_per_token(r.seq_len) + attention / 2;
  switch (r.recompute) {
    case Keep::kAll:
      return all;
    case Keep::kSelective:
      return all + attention;  // as the appendix counts it
    case Keep::kSelectiveOps:
      return all + layers / 6;
    case Keep::kFull:
      return all + (layers + attention) / 3;
  }
  CLEAVE_BUG("unknown recompute");
}

/// Seconds of a step by the share of the peak that it reaches; 0: the row has none, or its machine
/// is not known.
double step_of_mfu(const Row& row, const PublishedRun& p, double tokens) {
  const double mfu = row.may_have("mfu_pct", "") ? row.number("mfu_pct") / 100 : 0;
  if (mfu == 0 || p.cluster.empty()) return 0;
  const double peak = cluster_preset(p.cluster).matrix_flops.at(static_cast<size_t>(p.run.type));
  return tokens * p.size.train_flops_per_token(p.run.seq_len) / (mfu * peak);
}

/// Seconds of a step: as published, or from tokens or flops per second of a device, or its share of
/// the peak. 0: none of them.
double step_of(const Row& row, const PublishedRun& p) {
  if (row.is_vtrain()) return row.number("step_ms") / 1000;
  if (row.number("step_s") > 0) return row.number("step_s");
  const double tokens = static_cast<double>(p.run.global_batch * p.run.seq_len) /
                        static_cast<double>(p.run.devices());
  const double speed = row.number("tokens_per_s_per_device");
  if (speed > 0) return tokens / speed;
  const double flops = row.number("tflops_per_device") * 1e12;
  if (flops == 0) return step_of_mfu(row, p, tokens);
  const bool of_hardware = row.text("tflops_counts").starts_with("hardware");
  CLEAVE_CHECK(of_hardware || row.text("tflops_counts").starts_with("model"), Code::kFormat,
               row.place(), ": tflops_counts is '", row.text("tflops_counts"),
               "'; expected model or hardware (with recompute), to know the step's time");
  return tokens / flops *
         (of_hardware ? hardware_flops_per_token(p.size, p.run)
                      : p.size.train_flops_per_token(p.run.seq_len));
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
  if (row.is_vtrain()) out.assumed.emplace_back("full recompute");
  if (row.text("recompute").empty()) out.assumed.emplace_back("no recompute");
  set_kernels(row, out.run);
  out.run.type = type_of(row);
  set_states(row, out.run);
  set_recipe(row, out);
  out.unsupported = unsupported(row, out);
  out.step_s = step_of(row, out);
  set_memory(row, out);
  return out;
}

}  // namespace

std::vector<PublishedRun> read_published_runs(const std::string& path) {
  CsvReader table(path);
  std::vector<PublishedRun> out;
  while (auto fields = table.next()) {
    out.push_back(run_of(Row(table, std::move(*fields), out.size() + 1)));
  }
  CLEAVE_CHECK(!out.empty(), Code::kFormat, path, ": the table has no rows; give at least one run");
  return out;
}

}  // namespace cleave::inline planner
