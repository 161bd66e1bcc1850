#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include <ATen/ATen.h>
#include <torch/version.h>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/planner/machine.h"
#include "cleave/torch_internals/onednn.h"

namespace cleave::inline planner {
namespace {

/// The shortest of five runs.
double shortest_s(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = monotonic_s();
    work();
    best = std::min(best, monotonic_s() - start);
  }
  return best;
}

/// The cache file of this machine's choice; "" without $XDG_CACHE_HOME and $HOME.
std::string choice_file() {
  const char* cache =
      std::getenv("XDG_CACHE_HOME");       // NOLINT(concurrency-mt-unsafe): nothing sets it
  const char* home = std::getenv("HOME");  // NOLINT(concurrency-mt-unsafe)
  if (cache == nullptr && home == nullptr) return "";
  const std::string folder = cache != nullptr ? cache : str(home, "/.cache");
  std::ifstream info("/proc/cpuinfo");
  std::string line, cpu;
  while (cpu.empty() && std::getline(info, line)) {
    if (line.starts_with("model name")) cpu = line;
  }
  return str(folder, "/cleave/gemm-", to_hex(hash_bytes(cpu + TORCH_VERSION)));
}

Gemm remembered_or_faster() {
  const std::string path = choice_file();
  std::string text;
  if (std::ifstream file(path); file >> text) {
    if (text == name(Gemm::kMkl)) return Gemm::kMkl;
    if (text == name(Gemm::kOneDnn)) return Gemm::kOneDnn;
  }
  const Gemm faster = faster_gemm();
  if (!path.empty()) {
    // If the folder is not writable, the next run only has to time again.
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    std::ofstream(path) << name(faster) << '\n';
  }
  return faster;
}

}  // namespace

Gemm faster_gemm() {
  const at::NoGradGuard no_grad;
  const Tensor x = at::ones({256, 512});
  const Tensor w = at::ones({1024, 512});
  onednn_linear(x, w, std::nullopt);  // warm-up: both libraries initialize at their first call
  at::linear(x, w);
  const double onednn = shortest_s([&] { onednn_linear(x, w, std::nullopt); });
  const double mkl = shortest_s([&] { at::linear(x, w); });
  return onednn < mkl ? Gemm::kOneDnn : Gemm::kMkl;
}

void choose_gemm(const std::string& flag, const Axis& everyone) {
  CLEAVE_CHECK(flag == "auto" || flag == "mkl" || flag == "onednn", Code::kUsage, "--gemm ", flag,
               " is unknown; choose auto, mkl or onednn");
  Gemm choice = flag == "onednn" ? Gemm::kOneDnn : Gemm::kMkl;
  if (flag == "auto") {
    Tensor agreed = at::zeros({1}, at::kLong);
    if (everyone.rank() == 0) agreed.fill_(static_cast<int64_t>(remembered_or_faster()));
    everyone.broadcast_(agreed, 0, "choice of gemm");
    choice = static_cast<Gemm>(agreed.item<int64_t>());
  }
  set_gemm(choice);
}

}  // namespace cleave::inline planner
