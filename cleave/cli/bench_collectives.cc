#include <algorithm>
#include <cstring>
#include <iomanip>
#include <iostream>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>

#include "cleave/base/byte_count.h"
#include "cleave/base/clock.h"
#include "cleave/base/dtype.h"
#include "cleave/base/error.h"
#include "cleave/cli/command.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/comm/api/world.h"
#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/comm/launch/launch.h"
#include "cleave/runtime/cpu_binding.h"

namespace cleave::cli {
namespace {

const std::vector<std::string> kOps = {"all-reduce", "all-gather", "reduce-scatter",
                                       "all-to-all", "broadcast",  "barrier"};

struct Options {
  std::string op = "all-reduce";
  int world = 2;
  std::string ranks = "threads";
  std::string bytes = "1KiB,4KiB,16KiB,64KiB,256KiB,1MiB,4MiB,16MiB,64MiB";
  std::string dtype = "fp32";
  double seconds = 0.5;
  bool one_core = false;
  bool json = false;
};

/// One collective over a buffer of `bytes`, the total over its shards where an operation shards it.
/// All-reduce is in place.
class Measured {
 public:
  Measured(Group& group, std::string op, int64_t bytes, DType dtype)
      : group_(&group), op_(std::move(op)), dtype_(dtype), count_(bytes / item_bytes(dtype)) {
    const int n = std::max(1, group.size());
    for (int r = 0; r < n; ++r) widths_.push_back(count_ * (r + 1) / n - count_ * r / n);
    // All-to-all: every rank sends and receives the same number of elements.
    parts_.assign(static_cast<size_t>(n), count_ / n);
    in_ = zeros(bytes);
    out_ = zeros(bytes);
  }

  void run() const {
    const Call call{.site = "cleave bench collectives", .shape = {&count_, 1}};
    if (op_ == "all-reduce") {
      group_->all_reduce(in_.get(), in_.get(), count_, dtype_, ReduceOp::kSum, call);
    } else if (op_ == "all-gather") {
      group_->all_gather(in_.get(), out_.get(), 1, widths_, dtype_, call);
    } else if (op_ == "reduce-scatter") {
      group_->reduce_scatter(in_.get(), out_.get(), 1, widths_, dtype_, call);
    } else if (op_ == "all-to-all") {
      group_->all_to_all(in_.get(), parts_, out_.get(), parts_, dtype_, call);
    } else if (op_ == "broadcast") {
      group_->broadcast(in_.get(), count_, dtype_, 0, call);
    } else {
      group_->barrier(call);
    }
  }

  /// Lower bound of the bytes that every rank receives from, or sends to, its peers.
  [[nodiscard]] double bytes_moved() const {
    const double n = group_->size();
    const double bytes = static_cast<double>(count_ * item_bytes(dtype_));
    if (op_ == "barrier") return 0;
    if (op_ == "broadcast") return bytes;
    return bytes * (n - 1) / n * (op_ == "all-reduce" ? 2 : 1);
  }

 private:
  static constexpr std::align_val_t kPage{4096};
  struct Free {
    void operator()(std::byte* memory) const { operator delete(memory, kPage); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;

  static Memory zeros(int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    Memory memory(static_cast<std::byte*>(operator new(size, kPage)));
    std::memset(memory.get(), 0, size);
    return memory;
  }

  Group* group_;
  std::string op_;
  DType dtype_;
  int64_t count_;
  std::vector<int64_t> widths_, parts_;
  Memory in_, out_;
};

/// Seconds per call, in ascending order. A sample is the mean of as many calls as take 20 us, so
/// that the time to read the clock is negligible.
std::vector<double> measure(Group& group, const Measured& measured, double seconds) {
  constexpr int64_t kMinSamples = 5, kMaxSamples = 5000;
  constexpr double kSample = 20e-6;
  const double warm_up = std::min(1e-3, seconds / 10);
  const auto time = [&](int64_t calls) {
    const double begin = monotonic_s();
    for (int64_t i = 0; i < calls; ++i) measured.run();
    return (monotonic_s() - begin) / static_cast<double>(calls);
  };
  // Each rank has its own times: rank 0 decides how many calls all make.
  const auto agreed = [&](int64_t number) {
    group.broadcast(&number, 1, DType::kI64, 0, {.site = "plan of samples", .shape = {}});
    return number;
  };
  time(2);
  const auto num_warm_up =
      agreed(std::clamp<int64_t>(static_cast<int64_t>(warm_up / time(3)), 1, 1000));
  const double call = time(num_warm_up);
  const auto num_calls = agreed(std::max<int64_t>(1, static_cast<int64_t>(kSample / call)));
  const auto num_samples = agreed(std::clamp(
      static_cast<int64_t>(seconds / std::max(call, kSample)), kMinSamples, kMaxSamples));
  std::vector<double> samples;
  for (int64_t i = 0; i < num_samples; ++i) samples.push_back(time(num_calls));
  std::sort(samples.begin(), samples.end());
  return samples;
}

double microseconds(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))] * 1e6;
}

void print(const Options& options, const std::string& op, int64_t bytes,
           const std::vector<double>& samples, double bytes_moved) {
  const double median = microseconds(samples, 0.5), low = microseconds(samples, 0.1),
               high = microseconds(samples, 0.9);
  const double bandwidth = bytes_moved / median * 1e6;
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"op", op},
                                        {"bytes", bytes},
                                        {"world", options.world},
                                        {"ranks", options.ranks},
                                        {"dtype", options.dtype},
                                        {"one_core", options.one_core},
                                        {"median_us", median},
                                        {"p10_us", low},
                                        {"p90_us", high},
                                        {"min_us", microseconds(samples, 0)},
                                        {"busy_bytes_per_s", bandwidth}}
                     .dump()
              << std::endl;
    return;
  }
  std::cout << std::left << std::setw(15) << op << std::right << std::setw(12) << bytes_text(bytes);
  for (const double us : {median, low, high}) {
    std::cout << std::setw(12) << fixed_text(us, us < 100 ? 2 : 0);
  }
  std::cout << std::setw(10) << fixed_text(bandwidth / 1e9, 2) << std::endl;
}

std::vector<int64_t> sizes(const Options& options, DType dtype) {
  std::vector<int64_t> list;
  std::istringstream parts(options.bytes);
  for (std::string part; std::getline(parts, part, ',');) {
    const auto bytes = bytes_from_text(part);
    const int64_t unit = item_bytes(dtype) * options.world;
    CLEAVE_CHECK(bytes && *bytes <= uint64_t{1} << 40, Code::kUsage, "--bytes has '", part,
                 "'; expected comma-separated sizes such as 4KiB,1MiB");
    // Rounded up to a whole number of elements per rank.
    list.push_back((static_cast<int64_t>(*bytes) + unit - 1) / unit * unit);
  }
  CLEAVE_CHECK(!list.empty(), Code::kUsage,
               "--bytes is empty; expected comma-separated sizes such as 4KiB,1MiB");
  return list;
}

void measure_all(World& world, const Options& options) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = world.group(ranks, "bench");
  const DType dtype = dtype_from_name(options.dtype).value();
  if (world.rank() == 0 && !options.json) {
    std::cout << options.world << " rank " << options.ranks << ", " << options.dtype
              << (options.one_core ? ", all on one core\n" : "\n") << std::left << std::setw(15)
              << "op" << std::right << std::setw(12) << "bytes";
    for (const char* title : {"median us", "p10 us", "p90 us"}) {
      std::cout << std::setw(12) << title;
    }
    std::cout << std::setw(10) << "GB/s" << std::endl;
  }
  for (const std::string& op : kOps) {
    if (options.op != "all" && options.op != op) continue;
    for (const int64_t bytes : op == "barrier" ? std::vector<int64_t>{0} : sizes(options, dtype)) {
      const Measured measured(*group, op, bytes, dtype);
      const auto samples = measure(*group, measured, options.seconds);
      if (world.rank() == 0) print(options, op, bytes, samples, measured.bytes_moved());
    }
  }
}

int run(const Options& options) {
  sizes(options, dtype_from_name(options.dtype).value());
  const auto environment = read_environment();
  const auto body = [&](World& world) {
    std::optional<CpuBinding> binding;
    if (!options.one_core) binding.emplace(world, 1);
    Options actual = options;  // a launcher's ranks are processes, whatever --ranks says
    if (!world.ranks_are_threads()) actual.ranks = "processes";
    measure_all(world, actual);
  };
  if (environment) {
    CLEAVE_CHECK(environment->world_size == options.world, Code::kShape, "--world ", options.world,
                 ", but the launcher started ", environment->world_size, " ranks");
    return run_rank(*environment, body);
  }
  if (options.one_core) bind_to_cpu(usable_cpus().front());
  if (options.ranks == "processes") {
    return launch({.num_ranks = options.world, .command = process_args(), .environment = {}});
  }
  run_ranks(options.world, body, {.flight_log_folder = temporary_flight_logs()});
  return 0;
}

}  // namespace

Command bench_collectives_command() {
  return {
      .name = "bench collectives",
      .summary = "time collectives between ranks on this host",
      .usage = "[--op NAME] [--world N] [--ranks threads|processes] [flags]",
      .define = [](Flags& flags) -> Run {
        auto options = std::make_shared<Options>();
        std::vector<std::string> ops = kOps;
        ops.emplace_back("all");
        flags.add({&options->op, "op", "", "collective to time", "", std::move(ops)});
        flags.add({&options->world, "world", "N", "number of ranks", "", option::kHostRanks});
        flags.add({&options->ranks, "ranks", "", "run ranks as threads or as processes", "",
                   option::Choices{"threads", "processes"}});
        flags.add({&options->bytes, "bytes", "LIST", "total sizes of the data"});
        flags.add({&options->dtype, "dtype", "", "dtype of the elements", "",
                   option::Choices{"fp32", "bf16", "fp16"}});
        flags.add({&options->seconds, "seconds", "S", "time for each line of output", "",
                   option::Limits{.low = 1e-6, .high = 1e5}});
        flags.add({&options->one_core, "one-core", "", "bind all ranks to one core", "off"});
        flags.add({&options->json, "json", "", "print a line of JSON for each op and size", "off"});
        return [options] { return run(*options); };
      }};
}

}  // namespace cleave::cli
