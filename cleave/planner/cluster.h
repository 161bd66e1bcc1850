#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cleave/text/json.h"

namespace cleave::inline planner {

/// The dtype of matrix products, by its bytes per element.
enum class MatrixType : uint8_t { kFp32, kBf16, kFp8, kFp4 };

/// The constants of one kind of machine that tools/fit_planner.py fits to published runs.
struct FittedConstants {
  double matrix_share = 0.80;     ///< share of the matrix speed that a large product reaches
  double memory_share = 0.80;     ///< share of the memory bandwidth that elementwise passes reach
  double host_link_share = 0.70;  ///< share of a link inside a host that collectives reach
  double net_link_share = 0.70;   ///< share of a link between hosts that all traffic reaches
  double layer_call_s = 0.0010;   ///< least seconds of one pass through a layer: kernel launches
  double runtime_bytes = 5e9;     ///< a device's memory outside of the counted tensors
};

/// Devices, hosts and network. Rates are per second, of one device, in one direction.
struct Cluster {
  std::string name;
  std::vector<std::string> sources;  ///< where the numbers come from
  int devices_per_host = 8;
  double memory_bytes = 0;
  std::array<double, 4> matrix_flops{};  ///< dense, by MatrixType; fp32 without TF32
  double vector_flops = 0;               ///< fp32 outside of the matrix units
  double memory_rate = 0;                ///< bytes of device memory
  double host_link_rate = 0;             ///< bytes to other devices of the host
  double net_link_rate = 0;              ///< bytes to other hosts: the host's rate / its devices
  double host_latency_s = 0;             ///< of a message inside a host
  double net_latency_s = 0;              ///< of a message between hosts
  int num_cores = 1;                     ///< multiprocessors that share a matrix product's tiles
  bool fused_attention = true;           ///< scores are not stored (FlashAttention)
  double attention_share = 0.55;         ///< speed of fused attention's products, of a product's
  bool measured_here = false;            ///< devices are ranks on this host's CPU
  FittedConstants fitted;
};

/// Bytes of "80GB", "80GiB" or "80G"; nullopt for another text.
std::optional<double> memory_from_text(const std::string& text);

/// Bytes of --memory. Throws Error(kUsage) for another text, and for less than 1 MB, where the unit
/// is missing.
double memory_limit(const std::string& text);

/// Names of the presets, without "here".
std::vector<std::string> cluster_names();

/// A preset. Throws Error(kUsage) with the known names.
Cluster cluster_preset(const std::string& name);

/// This host as a cluster of hosts with `devices_per_host` ranks, measured by the call.
using MeasureHere = std::function<Cluster(int devices_per_host)>;

/// A preset or a file. Throws Error(kUsage) for an unknown name, Error(kIo) or Error(kFormat) for
/// a file.
Cluster read_cluster(const std::string& name_or_file, const MeasureHere& here = {});

/// A cluster from JSON: {"base": PRESET, FIELD: VALUE, ...}. Sizes are numbers of bytes or texts
/// like "80GB", "80GiB" and "80G". Without "base", memory, matrix_flops, memory_rate,
/// host_link_rate and net_link_rate are required. With `here`, PRESET may be "here"; it needs
/// "devices_per_host". Throws Error(kFormat).
Cluster cluster_of(const Json& json, const MeasureHere& here = {});

}  // namespace cleave::inline planner
