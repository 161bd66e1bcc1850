#include "cleave/planner/work_speed.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/base/clock.h"
#include "cleave/base/median.h"
#include "cleave/base/philox.h"
#include "cleave/base/resource_limits.h"
#include "cleave/base/str.h"
#include "cleave/kernels/cpu/attention.h"
#include "cleave/kernels/cpu/dropout.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cuda/device_kernels.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline planner {
namespace {

constexpr auto kOther = static_cast<size_t>(TimeKind::kOther);
constexpr auto kAttention = static_cast<size_t>(TimeKind::kAttention);
constexpr auto kProducts = static_cast<size_t>(TimeKind::kProducts);

double flops_of(const MatrixWork& work) {
  return work.flops();
}

/// Flops of the two products of attention, scores that are hidden from a query included unless they
/// are outside of its window.
double flops_of(const AttentionWork& work) {
  const int64_t keys = work.window > 0 ? std::min(work.window, work.keys) : work.keys;
  return 4.0 * static_cast<double>(work.batch * work.heads) *
         static_cast<double>(work.queries * keys) * static_cast<double>(work.width);
}

/// Seconds at a speed of products. Backward has five products of the sizes of forward's two.
double seconds_at(double flops, const AttentionWork& work) {
  const double passes = work.is_backward ? 2.5 : 1;
  const bool has_short_window = work.window > 0 && work.window < work.keys;
  const double seen = work.is_causal && !has_short_window ? 0.5 : 1;
  return passes * seen * flops_of(work) / flops;
}

std::array<int64_t, 4> sizes_of(const MatrixWork& work) {
  return {work.batch, work.rows, work.inner, work.columns};
}

std::array<int64_t, 4> sizes_of(const AttentionWork& work) {
  return {work.batch * work.heads, work.queries, work.keys, work.width};
}

bool is_same_kind(const MatrixWork& a, const MatrixWork& b) {
  return a.type == b.type && a.is_first_transposed == b.is_first_transposed &&
         a.is_second_transposed == b.is_second_transposed;
}

bool is_same_kind(const AttentionWork& a, const AttentionWork& b) {
  return a.type == b.type && a.is_backward == b.is_backward && a.is_causal == b.is_causal &&
         a.has_dropout == b.has_dropout;
}

/// How different the sizes are: the sum of the logarithms of their ratios.
template <class Shape>
double difference(const Shape& a, const Shape& b) {
  const auto of_a = sizes_of(a), of_b = sizes_of(b);
  double sum = 0;
  for (size_t i = 0; i < of_a.size(); ++i) {
    sum += std::abs(std::log(static_cast<double>(of_a.at(i)) / static_cast<double>(of_b.at(i))));
  }
  return sum;
}

/// The measurement of `shape`, or else of the most similar shape; the end of the map if there is
/// none.
template <class Map, class Shape = typename Map::key_type>
typename Map::const_iterator most_similar(const Map& measured, const Shape& shape) {
  auto best = measured.find(shape);
  if (best == measured.end()) {
    double least = std::numeric_limits<double>::infinity();
    for (auto at = measured.begin(); at != measured.end(); ++at) {
      if (!is_same_kind(at->first, shape)) continue;
      const double different = difference(at->first, shape);
      if (different >= least) continue;
      least = different;
      best = at;
    }
  }
  return best;
}

/// The distance in the middle of bucket i of BytesByDistance, on a logarithmic scale.
double distance_of_bucket(size_t i) {
  return std::exp2(static_cast<double>(i) + 0.5);
}

/// The speed of the working set nearest to `bytes` in logarithm.
double speed_at(const std::vector<MemorySpeed>& speeds, double bytes) {
  const auto nearest = std::min_element(speeds.begin(), speeds.end(),
                                        [bytes](const MemorySpeed& a, const MemorySpeed& b) {
                                          return std::abs(std::log(a.working_set / bytes)) <
                                                 std::abs(std::log(b.working_set / bytes));
                                        });
  return nearest->bytes_per_s;
}

/// How far away `bytes` are on average: 0 as the smallest working set of `speeds`, 1 as the
/// largest, in between by the time to read them.
double farness(const BytesByDistance& bytes, const std::vector<MemorySpeed>& speeds) {
  const double all = std::accumulate(bytes.begin(), bytes.end(), 0.0);
  if (all == 0 || speeds.empty()) return 1;
  const double near_s = 1 / speeds.front().bytes_per_s, far_s = 1 / speeds.back().bytes_per_s;
  if (far_s <= near_s) return 1;
  double sum = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double read_s = 1 / speed_at(speeds, distance_of_bucket(i));
    sum += bytes.at(i) * std::clamp((read_s - near_s) / (far_s - near_s), 0.0, 1.0);
  }
  return sum / all;
}

}  // namespace

void add_seconds(KindSeconds& sum, const KindSeconds& more, double factor) {
  for (size_t k = 0; k < sum.size(); ++k) sum.at(k) += factor * more.at(k);
}

double total_of(const KindSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

int cpus_here() {
  const auto cpus = std::max(1U, std::thread::hardware_concurrency());
  const double quota = cgroup_limits().cores.value_or(cpus);
  return static_cast<int>(std::max(1.0, std::min(quota, static_cast<double>(cpus))));
}

int64_t last_cache_bytes(const std::filesystem::path& root) {
  namespace fs = std::filesystem;
  std::set<std::string> seen;  // the CPUs that share a cache
  int64_t kilobytes = 0;
  std::error_code no_folder;
  for (int cpu = 0;; ++cpu) {
    const fs::path folder = root / "sys/devices/system/cpu" / str("cpu", cpu);
    if (!fs::exists(folder, no_folder)) break;
    std::ifstream sharing(folder / "cache/index3/shared_cpu_list");
    std::ifstream size(folder / "cache/index3/size");
    std::string cpus;
    int64_t own = 0;
    char unit = 0;
    if (!(sharing >> cpus) || !(size >> own >> unit) || unit != 'K' || own <= 0) continue;
    constexpr int64_t kMost = int64_t{1} << 32;
    if (seen.insert(cpus).second) kilobytes += std::min(own, kMost / 1024);
  }
  return kilobytes * 1024;
}

MatrixWork part_of(MatrixWork shape, double most_flops) {
  while (shape.flops() > most_flops && shape.batch > 1) shape.batch /= 2;
  while (shape.flops() > most_flops) {
    int64_t& largest =
        std::max({std::ref(shape.rows), std::ref(shape.inner), std::ref(shape.columns)},
                 [](int64_t a, int64_t b) { return a < b; });
    if (largest == 1) break;
    largest /= 2;
  }
  return shape;
}

AttentionWork part_of(AttentionWork shape, double most_flops) {
  while (flops_of(shape) > most_flops && shape.batch > 1) shape.batch /= 2;
  while (flops_of(shape) > most_flops && shape.heads > 1) {
    const int64_t kv_heads = std::max<int64_t>(1, shape.kv_heads / 2);
    // The heads stay a multiple of the KV heads if they were one.
    shape.heads = shape.kv_heads > 1 ? std::max(kv_heads, shape.heads * kv_heads / shape.kv_heads)
                                     : shape.heads / 2;
    shape.kv_heads = kv_heads;
  }
  // Time grows with the flops of sequences that are longer than the kernels' blocks and a window.
  const int64_t least = std::max<int64_t>(1024, 2 * shape.window);
  while (flops_of(shape) > most_flops && std::min(shape.queries, shape.keys) >= 2 * least) {
    shape.queries /= 2;
    shape.keys /= 2;
  }
  return shape;
}

double WorkSpeed::far_pass_s(double bytes) const {
  return memory.empty() ? 0 : bytes / memory.back().bytes_per_s;
}

KindSeconds WorkSpeed::seconds_of(const OpWork& work) const {
  KindSeconds sum{};
  for (const auto& [shape, count] : work.products) {
    const auto speed = most_similar(products, shape);
    if (speed != products.end()) {
      const auto factors = work.factors.find(shape);
      const double far = factors == work.factors.end() ? 1 : farness(factors->second, memory);
      const double times = count * shape.flops() / speed->first.flops();
      add_seconds(sum, speed->second.near, times * (1 - far));
      add_seconds(sum, speed->second.far, times * far);
    } else if (flops > 0) {
      sum[kProducts] += count * shape.flops() / flops;
    }
  }
  for (const auto& [shape, count] : work.attention) {
    const auto speed = most_similar(attention, shape);
    if (speed != attention.end()) {
      add_seconds(sum, speed->second, count * flops_of(shape) / flops_of(speed->first));
    } else if (flops > 0) {
      sum[kAttention] += count * seconds_at(flops, shape);
    }
  }
  for (size_t i = 0; i < work.moved.size() && !memory.empty(); ++i) {
    if (work.moved.at(i) == 0) continue;
    sum[kOther] += work.moved.at(i) / speed_at(memory, distance_of_bucket(i));
  }
  sum[kOther] += work.random_numbers * random_number_s + work.operations * operation_s;
  return sum;
}

namespace {

/// Memory twice as large as this rank's share of the last cache, since caches do not replace
/// exactly what is oldest; or all that a rank of a run has.
class OtherMemory {
 public:
  OtherMemory(int64_t rank_bytes, int num_ranks) {
    constexpr int64_t kUsual = int64_t{32} << 20;
    // Not sysconf(): on virtual machines it may count the caches of CPUs that they do not have.
    const int64_t reported = last_cache_bytes();
    const int64_t twice = 2 * (reported > 0 ? reported : kUsual) / num_ranks;
    memory_ = at::ones({std::min(twice, rank_bytes) / static_cast<int64_t>(sizeof(float)) + 1});
  }
  /// Uses all of it, as a step uses other memory between two uses of a tensor.
  void use() const { use(std::numeric_limits<int64_t>::max(), 0); }
  /// Uses its `i`-th part of `bytes`; after the last again the first.
  void use(int64_t bytes, int64_t i) const {
    const at::NoGradGuard no_grad;
    const int64_t count = std::clamp<int64_t>(bytes / memory_.element_size(), 1, memory_.numel());
    memory_.narrow(0, i % (memory_.numel() / count) * count, count).add_(1);
  }

 private:
  Tensor memory_;
};

template <class Run>
KindSeconds timed(const Run& run) {
  const OpClock clock;
  run();
  return clock.seconds();
}

/// Ones [batch, rows, columns], of which the columns are contiguous if it is transposed.
Tensor matrices_of(const std::array<int64_t, 3>& sizes, bool is_transposed, at::ScalarType type) {
  const auto [batch, rows, columns] = sizes;
  return is_transposed ? at::ones({batch, columns, rows}, type).transpose(1, 2)
                       : at::ones({batch, rows, columns}, type);
}

/// Measures a product with its matrices in the caches, and after other memory was used.
ProductSpeed measured(const MatrixWork& shape, const OtherMemory& other) {
  const at::NoGradGuard no_grad;
  const Tensor a =
      matrices_of({shape.batch, shape.rows, shape.inner}, shape.is_first_transposed, shape.type);
  const Tensor b = matrices_of({shape.batch, shape.inner, shape.columns},
                               shape.is_second_transposed, shape.type);
  const auto product = [&] {
    (void)(shape.batch > 1 ? at::bmm(a, b) : matrix_product(a[0], b[0]));
  };
  product();  // takes memory and makes the matrices near
  const KindSeconds near = timed(product);
  other.use();
  return {.near = near, .far = timed(product)};
}

Tensor attention_of(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionWork& shape) {
  if (!takes_fast_attention(q, k, v)) {
    return at::scaled_dot_product_attention(q, k, v, {}, 0, shape.is_causal, {},
                                            /*enable_gqa=*/shape.heads != shape.kv_heads);
  }
  AttentionMask mask{.causal = shape.is_causal, .window = shape.window};
  for (int64_t h = 0; h < shape.heads; ++h) {
    mask.kv_head.push_back(h * shape.kv_heads / shape.heads);
  }
  if (shape.has_dropout) mask.dropout = {.p = 0.1, .num_heads = shape.heads};
  return fast_attention(q, k, v, mask);
}

/// The forward pass after its inputs were made; the backward pass after other memory was used.
KindSeconds measured(const AttentionWork& shape, const OtherMemory& other) {
  const at::AutoGradMode with_grad(true);
  const auto heads = [&](int64_t count, int64_t rows) {
    return at::ones({shape.batch, rows, count, shape.width}, shape.type)
        .transpose(1, 2)
        .requires_grad_();
  };
  const Tensor q = heads(shape.heads, shape.queries);
  const Tensor k = heads(shape.kv_heads, shape.keys), v = heads(shape.kv_heads, shape.keys);
  const auto forward = [&] { return attention_of(q, k, v, shape); };
  const Tensor gradient = at::ones_like(forward());  // takes memory and makes the inputs near
  if (!shape.is_backward) return timed(forward);
  const auto backward = [&](const Tensor& out) {
    torch::autograd::grad({out}, {q, k, v}, {gradient});
  };
  backward(forward());
  const Tensor out = forward();
  other.use();
  return timed([&] { backward(out); });
}

/// Bytes per second of sums a += b over a working set of chunks that fit into the nearest cache.
double memory_speed_of(int64_t working_set) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kMostChunk = int64_t{1} << 20;
  const int64_t chunk = std::min(working_set / 2, kMostChunk);
  const int64_t elements = chunk / static_cast<int64_t>(sizeof(float));
  std::vector<std::pair<Tensor, Tensor>> chunks;
  for (int64_t i = 0; i < working_set / (2 * chunk); ++i) {
    chunks.emplace_back(at::ones({elements}), at::ones({elements}));
  }
  std::vector<double> seconds;
  constexpr int64_t kLeastBytes = int64_t{16} << 20;  // of a timed run
  const int64_t times = std::max<int64_t>(1, kLeastBytes / working_set);
  for (int run = 0; run < 3; ++run) {
    const double begin = monotonic_s();
    for (int64_t i = 0; i < times; ++i) {
      for (const auto& [a, b] : chunks) a.add_(b);
    }
    seconds.push_back((monotonic_s() - begin) / static_cast<double>(times));
  }
  const double once = static_cast<double>(chunk) * static_cast<double>(chunks.size());
  return 3 * once / median(seconds);
}

/// Seconds to make one random number: by the kernel with all threads, or by fill_uniform() without
/// it.
double random_number_s() {
  const bool has_kernel = is_on(Kernel::kRandom);
  constexpr int kOfThread = 1 << 15;  // fits into a core's own cache
  std::vector<float> numbers(
      static_cast<size_t>(kOfThread * (has_kernel ? at::get_num_threads() : 1)));
  const DropoutJob job{
      .count = std::ssize(numbers), .out = numbers.data(), .key = 1, .step = 1, .p = 0.1F};
  std::vector<double> seconds;
  for (int i = 0; i < 3; ++i) {
    const double begin = monotonic_s();
    if (has_kernel) {
      dropout_elements(job);
    } else {
      fill_uniform(1, 1, 0, numbers);
    }
    seconds.push_back(monotonic_s() - begin);
  }
  return median(seconds) / static_cast<double>(numbers.size());
}

/// Overhead of an operation, measured in forward and backward of a small layer. Each run first uses
/// as much other memory as a step does in as many operations, which empties the nearest caches.
double operation_s(const OtherMemory& other, double bytes_between) {
  const at::AutoGradMode with_grad(true);
  const Tensor w = at::ones({2, 2}).requires_grad_();
  const auto layer = [&w] {
    const Tensor x = at::linear(w, w);
    const Tensor y = at::silu(x) * x.view({1, 2, 2}).transpose(1, 2);
    torch::autograd::backward({(y + w).sum()}, {});
    w.mutable_grad().reset();
  };
  double operations = 0;
  {
    WorkCounter counter;
    layer();
    operations = counter.take().operations;
  }
  std::vector<double> seconds;
  constexpr int kLayers = 16;
  for (int i = 0; i < kLayers; ++i) {
    other.use(static_cast<int64_t>(operations * bytes_between), i);
    const double begin = monotonic_s();
    layer();
    seconds.push_back(monotonic_s() - begin);
  }
  return median(seconds) / operations;
}

/// Bytes that passes and products use between two operations on average.
double bytes_between(const OpWork& work) {
  double bytes = work.moved_bytes();
  for (const auto& [shape, factors] : work.factors) {
    bytes += std::accumulate(factors.begin(), factors.end(), 0.0);
  }
  return bytes / std::max(work.operations, 1.0);
}

/// The shapes of `all` with the most flops in total, at most `count`, by shape.
template <class Shape>
std::vector<Shape> heaviest(const std::map<Shape, double>& all, size_t count) {
  std::vector<std::pair<double, Shape>> sorted;
  sorted.reserve(all.size());
  for (const auto& [shape, times] : all) sorted.emplace_back(times * flops_of(shape), shape);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Shape> out;
  for (size_t i = 0; i < std::min(count, sorted.size()); ++i) out.push_back(sorted[i].second);
  return out;
}

/// The one in the middle, by its total.
KindSeconds median_of(std::vector<KindSeconds> all) {
  std::sort(all.begin(), all.end(),
            [](const KindSeconds& a, const KindSeconds& b) { return total_of(a) < total_of(b); });
  return all.at(all.size() / 2);
}

ProductSpeed median_of(const std::vector<ProductSpeed>& all) {
  std::vector<KindSeconds> near, far;
  for (const ProductSpeed& speed : all) {
    near.push_back(speed.near);
    far.push_back(speed.far);
  }
  return {.near = median_of(std::move(near)), .far = median_of(std::move(far))};
}

KindSeconds times(const KindSeconds& seconds, double factor) {
  KindSeconds out{};
  add_seconds(out, seconds, factor);
  return out;
}

ProductSpeed times(const ProductSpeed& speed, double factor) {
  return {.near = times(speed.near, factor), .far = times(speed.far, factor)};
}

/// Runs pieces of a measurement on the first ranks at the same time.
class Measurement {
 public:
  Measurement(const Axis& everyone, int64_t rank_bytes)
      : everyone_(everyone),
        num_measuring_(std::min(everyone.size(), cpus_here())),
        other_(everyone.rank() < num_measuring_ ? rank_bytes : 0, num_measuring_) {}

  /// Runs `piece` on the ranks and returns the result of the slowest.
  template <class Piece>
  auto run(const Piece& piece) {
    everyone_.barrier("measured speed");
    decltype(piece()) seconds{};
    if (everyone_.rank() < num_measuring_) seconds = piece();
    return slowest(seconds);
  }

  [[nodiscard]] const OtherMemory& other() const { return other_; }

  template <class Shape, class Speed>
  void run_shapes(const std::map<Shape, double>& work, double most_flops,
                  std::map<Shape, Speed>& out) {
    constexpr size_t kMostShapes = 32;
    constexpr int kRounds = 5;  // apart in time, because the speed of a CPU varies
    const std::vector<Shape> shapes = heaviest(work, kMostShapes);
    std::map<Shape, std::vector<Speed>> parts;  // many shapes have the same part
    for (const Shape& shape : shapes) parts.try_emplace(part_of(shape, most_flops));
    for (int round = 0; round < kRounds; ++round) {
      for (auto& [part, all] : parts) {
        all.push_back(run([&, &shape = part] { return measured(shape, other_); }));
      }
    }
    for (const Shape& shape : shapes) {
      const Shape part = part_of(shape, most_flops);
      out[shape] = times(median_of(parts.at(part)), flops_of(shape) / flops_of(part));
    }
  }

 private:
  /// The largest value over the ranks of each number in `seconds`, a struct of doubles: ranks that
  /// wait for each other have the speed of the slowest. Ranks that measure nothing pass zeros.
  template <class Seconds>
  [[nodiscard]] Seconds slowest(Seconds seconds) const {
    const size_t count = std::span(&seconds, 1).size_bytes() / sizeof(double);
    const Tensor own = at::from_blob(&seconds, {static_cast<int64_t>(count)}, at::kDouble);
    own.copy_(everyone_.all_reduce(own, "measured speed", ReduceOp::kMax));
    return seconds;
  }

  const Axis& everyone_;
  int num_measuring_;
  OtherMemory other_;
};

}  // namespace

WorkSpeed measure_work(const Axis& everyone, const OpWork& work, double flops, int64_t rank_bytes) {
  constexpr double kLongestProductS = 0.008;
  WorkSpeed speed{.flops = flops};
  Measurement measurement(everyone, rank_bytes);
  measurement.run_shapes(work.products, flops * kLongestProductS, speed.products);
  measurement.run_shapes(work.attention, flops * kLongestProductS, speed.attention);
  for (int64_t set = int64_t{1} << 18; set <= int64_t{1} << 26; set *= 4) {
    if (set > std::max(rank_bytes, int64_t{1} << 18)) break;
    const double byte_s = measurement.run([&] { return 1 / memory_speed_of(set); });
    speed.memory.push_back({.working_set = static_cast<double>(set), .bytes_per_s = 1 / byte_s});
  }
  speed.random_number_s = measurement.run([] { return random_number_s(); });
  speed.operation_s =
      measurement.run([&] { return operation_s(measurement.other(), bytes_between(work)); });
  return speed;
}

}  // namespace cleave::inline planner
