#include "cleave/planner/cluster_presets.h"

namespace cleave::inline planner {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kGB = 1e9;
constexpr double kTera = 1e12;
// Assumed for all machines, not fitted: the order of size of a small message of NCCL over NVLink
// and over InfiniBand.
constexpr double kHostLatency = 3e-6;
constexpr double kNetLatency = 10e-6;
// FlashAttention-2, which PyTorch has, reaches 35 % of the H100's matrix speed (arXiv:2407.08608),
// a product about 80 % (dgx-h100, below). NVIDIA's own attention and that of other devices:
// assumed.
constexpr double kFlashAttention2OnHopper = 0.44;
constexpr double kAttentionShare = 0.55;

// By tools/fit_planner.py, each kind of machine on its own rows of the published runs: Selene
// without MT-NLG, dgx-h100 without Megatron-Core and Qwen3 30B, Blackwell without LoRA.
// Where no memory is published, runtime_bytes is 5e9. {matrix_share, memory_share, host_link_share,
// net_link_share, layer_call_s, runtime_bytes}
constexpr FittedConstants kSelene{0.764, 0.904, 0.947, 0.95, 0.000717, 0};
constexpr FittedConstants kJeanZay{0.82, 0.393, 0.416, 0.95, 0.000999, 9.92e9};
// Memory is not published: the runtime takes what leaves room for every measured run.
constexpr FittedConstants kA100Hdr{0.824, 0.763, 0.877, 0.95, 0.000996, 2.9e9};
// MosaicML's runs have no tensor parallelism: the link inside a host is Selene's.
constexpr FittedConstants kA100{0.8, 0.3, 0.947, 0.695, 0.000955, 5e9};
constexpr FittedConstants kA100Small{0.778, 0.3, 0.7, 0.659, 0.001, 5e9};
constexpr FittedConstants kDgxH100{0.675, 0.688, 0.95, 0.729, 0.000901, 5e9};
// MosaicML's runs have no tensor parallelism, and their gathers overlap: their links are those of
// an earlier fit to DGX H100. The rest was fitted with attention at kAttentionShare.
constexpr FittedConstants kH100{0.624, 0.3, 0.608, 0.863, 1.87e-05, 5e9};
// NVIDIA's runs on B200 and GB200 together. GB300 has their memory and links, but 1400 W where
// GB200 has 1200 W, so only its matrix_share is its own.
constexpr FittedConstants kBlackwell{0.541, 0.95, 0.95, 0.753, 0.000949, 5e9};
constexpr FittedConstants kBlackwellUltra{0.62, 0.95, 0.95, 0.753, 0.000949, 5e9};
constexpr FittedConstants kA64fx{0.242, 0.3, 0.7, 0.3, 0.000253, 8.92e9};
constexpr FittedConstants kH100GrandTeton{0.505, 0.95, 0.822, 0.543, 0.000706, 8.15e9};

const char* const kA100Sheet =
    "NVIDIA A100 data sheet: dense TFLOP/s 312 bf16, 19.5 fp32; 80 GB (taken as GiB) at "
    "2039 GB/s; "
    "NVLink 600 GB/s, both directions together; white paper: 108 multiprocessors";
const char* const kH100Sheet =
    "NVIDIA H100 SXM data sheet: dense TFLOP/s 989 bf16, 1979 fp8, 67 fp32; 80 GB (taken "
    "as GiB) at "
    "3350 GB/s; NVLink 900 GB/s, both directions together; white paper: 132 multiprocessors";
const char* const kDgxH100Sheet = "DGX H100 data sheet: 8 devices, 8 links of 400 Gbit/s";
const char* const kLatencies = "latencies: assumed";
const char* const kHopperAttention =
    "attention: 0.44 of a product's speed, as FlashAttention-2 reaches 35 % of an H100 "
    "(arXiv:2407.08608)";

Cluster a100() {
  return {.name = "a100-80gb",
          .sources = {kA100Sheet, "DGX A100 data sheet: 8 devices, 8 links of 200 Gbit/s",
                      kLatencies, "fitted to MosaicML's runs; the link inside a host to Selene's"},
          .devices_per_host = 8,
          .memory_bytes = 80 * kGiB,
          .matrix_flops = {19.5 * kTera, 312 * kTera, 312 * kTera, 312 * kTera},
          .vector_flops = 19.5 * kTera,
          .memory_rate = 2039 * kGB,
          .host_link_rate = 300 * kGB,
          .net_link_rate = 25 * kGB,
          .host_latency_s = kHostLatency,
          .net_latency_s = kNetLatency,
          .num_cores = 108,
          .fused_attention = true,
          .fitted = kA100};
}

Cluster h100() {
  return {.name = "h100-80gb",
          .sources = {kH100Sheet, kDgxH100Sheet, kHopperAttention, kLatencies,
                      "constants fitted to MosaicML's runs, those of links to NVIDIA's runs"},
          .devices_per_host = 8,
          .memory_bytes = 80 * kGiB,
          .matrix_flops = {67 * kTera, 989 * kTera, 1979 * kTera, 1979 * kTera},
          .vector_flops = 67 * kTera,
          .memory_rate = 3350 * kGB,
          .host_link_rate = 450 * kGB,
          .net_link_rate = 50 * kGB,
          .host_latency_s = kHostLatency,
          .net_latency_s = kNetLatency,
          .num_cores = 132,
          .fused_attention = true,
          .attention_share = kFlashAttention2OnHopper,
          .fitted = kH100};
}

Cluster h200() {
  Cluster c = h100();
  c.name = "h200";
  c.sources = {"NVIDIA H200 data sheet: matrix speed and NVLink of H100, 141 GB at 4.8 TB/s",
               "DGX H200 data sheet: 8 devices, 8 links of 400 Gbit/s", kHopperAttention,
               kLatencies, "not fitted: constants of h100-80gb"};
  c.memory_bytes = 141 * kGB;
  c.memory_rate = 4800 * kGB;
  return c;
}

Cluster b200() {
  Cluster c = h100();
  c.name = "b200";
  c.sources = {
      "DGX B200 data sheet, 8 devices together: dense PFLOP/s 72 fp4, 36 fp8, 18 bf16; 1440 GB at "
      "64 TB/s; NVLink 14.4 TB/s, both directions; 8 links of 400 Gbit/s",
      "80 TFLOP/s fp32 (HGX B200 data sheet); assumed: 148 multiprocessors", kLatencies,
      "fitted to NVIDIA's runs on b200 and gb200"};
  c.memory_bytes = 180 * kGB;
  c.matrix_flops = {80 * kTera, 2250 * kTera, 4500 * kTera, 9000 * kTera};
  c.vector_flops = 80 * kTera;
  c.memory_rate = 8000 * kGB;
  c.host_link_rate = 900 * kGB;
  c.num_cores = 148;
  c.attention_share = kAttentionShare;
  c.fitted = kBlackwell;
  return c;
}

Cluster mi300x() {
  Cluster c = h100();
  c.name = "mi300x";
  c.sources = {
      "AMD MI300X data sheet: dense TFLOP/s 1307 bf16, 2615 fp8, 163 fp32; 192 GB "
      "at 5.3 TB/s; 304 compute units; 7 links of 64 GB/s in each direction",
      "8 devices and 8 links of 400 Gbit/s: the common servers", kLatencies,
      "not fitted: constants of h100-80gb"};
  c.memory_bytes = 192 * kGB;
  c.matrix_flops = {163 * kTera, 1307 * kTera, 2615 * kTera, 2615 * kTera};
  c.vector_flops = 163 * kTera;
  c.memory_rate = 5300 * kGB;
  c.host_link_rate = 448 * kGB;
  c.num_cores = 304;
  c.attention_share = kAttentionShare;
  return c;
}

/// Whole racks of 72 devices behind one NVLink switch.
Cluster gb200() {
  Cluster c = b200();
  c.name = "gb200";
  c.sources = {
      "NVIDIA GB200 NVL72 data sheet, 72 devices together: dense PFLOP/s 720 fp4, 360 fp8, 180 "
      "bf16; "
      "13.4 TB at 576 TB/s; NVLink 130 TB/s, both directions",
      "a link of 400 Gbit/s a device; assumed: 80 TFLOP/s fp32, 148 multiprocessors", kLatencies,
      "fitted to NVIDIA's runs on b200 and gb200"};
  c.devices_per_host = 72;
  c.memory_bytes = 186 * kGB;
  c.matrix_flops = {80 * kTera, 2500 * kTera, 5000 * kTera, 10000 * kTera};
  c.vector_flops = 80 * kTera;
  return c;
}

Cluster gb300() {
  Cluster c = gb200();
  c.name = "gb300";
  c.sources = {
      "NVIDIA GB300 NVL72 data sheet: GB200's dense bf16 and fp8, 1080 PFLOP/s fp4 of 72 devices,"
      " 279 GB a device",
      "a link of 800 Gbit/s a device; assumed: 80 TFLOP/s fp32, 148 multiprocessors", kLatencies,
      "matrix_share fitted to NVIDIA's runs on it, the rest to b200 and gb200"};
  c.memory_bytes = 279 * kGB;
  c.matrix_flops[3] = 15000 * kTera;
  c.fitted = kBlackwellUltra;
  c.net_link_rate = 100 * kGB;
  return c;
}

/// The A100 machines of published runs. Their software stored attention's scores.
Cluster published_a100(const char* name, const char* network, double net_link_rate,
                       const FittedConstants& fitted) {
  Cluster c = a100();
  c.name = name;
  c.sources = {kA100Sheet, network, kLatencies, "fitted to the runs on it"};
  c.net_link_rate = net_link_rate;
  c.fused_attention = false;
  c.fitted = fitted;
  return c;
}

/// Nodes of Fugaku, each a device: the software ran on CPUs in fp32.
Cluster a64fx() {
  return {
      .name = "a64fx",
      .sources =
          {"Fujitsu A64FX data sheet: 48 cores, 2 pipes of 512 bits, at 2.0 GHz: 6.1 "
           "TFLOP/s fp32, 12.3 fp16, no matrix units; 32 GB (taken as GiB) of HBM2 at 1024 GB/s",
           "Tofu D: 6 interfaces of 6.8 GB/s", kLatencies, "fitted to Fugaku-LLM's runs"},
      .devices_per_host = 1,
      .memory_bytes = 32 * kGiB,
      .matrix_flops = {6.144 * kTera, 12.288 * kTera, 12.288 * kTera, 12.288 * kTera},
      .vector_flops = 6.144 * kTera,
      .memory_rate = 1024 * kGB,
      .host_link_rate = 1024 * kGB,
      .net_link_rate = 40.8 * kGB,
      .host_latency_s = kHostLatency,
      .net_latency_s = kNetLatency,
      .num_cores = 48,
      .fused_attention = false,
      .fitted = kA64fx};
}

/// A pod of 4096 chips counts as a host: its links are one torus.
Cluster tpu_v4() {
  return {.name = "tpu-v4",
          .sources = {"Google Cloud TPU v4: 275 TFLOP/s bf16, 32 GiB at 1228 GB/s, pods of 4096 "
                      "chips, 6 links of 50 GB/s",
                      "assumed: 6.25 GB/s a chip between pods; fp32 an eighth of bf16", kLatencies,
                      "not fitted: there is one published run"},
          .devices_per_host = 4096,
          .memory_bytes = 32 * kGiB,
          .matrix_flops = {34.4 * kTera, 275 * kTera, 275 * kTera, 275 * kTera},
          .vector_flops = 4.3 * kTera,
          .memory_rate = 1228 * kGB,
          .host_link_rate = 300 * kGB,
          .net_link_rate = 6.25 * kGB,
          .host_latency_s = kHostLatency,
          .net_latency_s = kNetLatency,
          .num_cores = 8,
          .fused_attention = false,
          .fitted = {}};
}

std::vector<Cluster> published_machines() {
  Cluster small = a100();
  small.name = "a100-40gb";
  small.sources = {
      "NVIDIA A100 data sheet: 40 GB (taken as GiB) at 1555 GB/s, the rest as a100-80gb",
      kLatencies, "1600 Gbit/s per host: MosaicML", "fitted to MosaicML's runs"};
  small.memory_bytes = 40 * kGiB;
  small.memory_rate = 1555 * kGB;
  small.fitted = kA100Small;
  Cluster dgx = h100();
  dgx.name = "dgx-h100";
  dgx.sources = {kH100Sheet, kDgxH100Sheet, kLatencies, "fitted to NVIDIA's runs"};
  dgx.attention_share = kAttentionShare;
  dgx.fitted = kDgxH100;
  Cluster teton = h100();
  teton.name = "h100-96gb";
  teton.sources = {kH100Sheet, "96 GB of HBM2e at 2.4 TB/s, of which CUDA gives 95 GiB: torchtitan",
                   kHopperAttention, kLatencies, "fitted to torchtitan's runs"};
  teton.memory_bytes = 95 * kGiB;
  teton.memory_rate = 2400 * kGB;
  teton.fitted = kH100GrandTeton;
  return {published_a100("selene", "Selene: 8 links of 200 Gbit/s per host (arXiv:2104.04473)",
                         25 * kGB, kSelene),
          published_a100("jean-zay", "Jean Zay: 4 links of 100 Gbit/s per host (BLOOM's README)",
                         6.25 * kGB, kJeanZay),
          published_a100("a100-hdr", "vTrain: 4 links of 200 Gbit/s per host, assumed", 12.5 * kGB,
                         kA100Hdr),
          small,
          dgx,
          teton,
          a64fx(),
          tpu_v4()};
}

}  // namespace

const std::vector<Cluster>& cluster_presets() {
  static const std::vector<Cluster> all = [] {
    std::vector<Cluster> out{a100(), h100(), h200(), b200(), mi300x(), gb200(), gb300()};
    for (Cluster& c : published_machines()) out.push_back(std::move(c));
    return out;
  }();
  return all;
}

}  // namespace cleave::inline planner
