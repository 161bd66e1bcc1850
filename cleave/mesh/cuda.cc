#include "cleave/mesh/cuda.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <map>
#include <numeric>
#include <string_view>
#include <system_error>
#include <vector>

#include "cleave/mesh/gpus.h"

namespace cleave::inline mesh {
namespace {

constexpr const char* kHowToShare =
    "let the launcher set LOCAL_RANK and leave a GPU for each rank in CUDA_VISIBLE_DEVICES; "
    "CLEAVE_SHARE_GPU=1 lets ranks share a GPU, slowly, to test a layout";

std::unique_ptr<Cuda> load() {
  Dl_info own{};
  CLEAVE_CHECK(dladdr(reinterpret_cast<void*>(&device_of), &own) != 0, Code::kIo,
               "the dynamic loader does not report the folder of Cleave's library");
  const auto path = std::filesystem::path(own.dli_fname).parent_path() / "libcleave_cuda.so";
  std::error_code ignored;
  CLEAVE_CHECK(std::filesystem::exists(path, ignored), Code::kUsage,
               "--device cuda: this build supports only the CPU; choose cpu, or build with nvcc "
               "and libtorch's CUDA libraries installed");
  // RTLD_GLOBAL, as if libcleave were linked with it: libtorch's other libraries need its symbols.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  CLEAVE_CHECK(library != nullptr, Code::kUsage, "--device cuda: ", path.string(),
               " cannot be loaded: ",
               dlerror(),  // NOLINT(concurrency-mt-unsafe): per thread in glibc
               "; choose cpu, or install the libraries that libtorch needs (./run build does)");
  const auto make = reinterpret_cast<decltype(&cleave_cuda)>(dlsym(library, "cleave_cuda"));
  if (make == nullptr) CLEAVE_BUG("libcleave_cuda.so has no cleave_cuda");
  std::unique_ptr<Cuda> made;
  make(&made);
  return made;
}

}  // namespace

const Cuda& cuda() {
  static const std::unique_ptr<Cuda> loaded = load();
  return *loaded;
}

at::Device device_of(const std::string& flag) {
  if (flag == "cpu") return at::kCPU;
  CLEAVE_CHECK(flag == "cuda", Code::kUsage, "--device ", flag, " is unknown; choose cpu or cuda");
  (void)cuda().num_gpus();
  return cuda().type();
}

namespace {

/// An environment variable; "" if it is not set.
std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

}  // namespace

GpuSharing gpu_sharing() {
  const std::string_view value = variable("CLEAVE_SHARE_GPU");
  if (value.empty() || value == "0") return GpuSharing::kNone;
  if (value == "1") return GpuSharing::kHost;
  CLEAVE_CHECK(value == "nccl", Code::kUsage, "CLEAVE_SHARE_GPU=", value,
               " is unknown; set it to 1 (collectives through host memory) or nccl");
  return GpuSharing::kNccl;
}

bool is_deterministic() {
  return variable("CLEAVE_DETERMINISTIC") == "1";
}

void check_own_gpus(World& world, const std::string& uuid) {
  if (world.size() == 1) return;
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const std::vector<int64_t> widths(ranks.size(), std::ssize(uuid));
  std::string all(ranks.size() * uuid.size(), '\0');
  world.group(ranks, "GPUs")
      ->all_gather(uuid.data(), all.data(), 1, widths, DType::kU8,
                   {.site = "GPUs of the ranks", .shape = {}});
  std::map<std::string_view, int> users;
  for (const int rank : ranks) {
    const auto [other, is_new] = users.emplace(
        std::string_view(all).substr(static_cast<size_t>(rank) * uuid.size(), uuid.size()), rank);
    CLEAVE_CHECK(is_new, Code::kShape, "--device cuda: ranks ", other->second, " and ", rank,
                 " use the same GPU; ", kHowToShare);
  }
}

}  // namespace cleave::inline mesh

void cleave_require_gpus(int count) {
  using cleave::Code;
  const int found = cleave::cuda().num_gpus();
  if (cleave::shares_gpus()) return;
  const char* const plural = found == 1 ? "" : "s";
  CLEAVE_CHECK(count <= found, Code::kShape, "--device cuda: ", count,
               " ranks on this host need one GPU each; it has ", found, " GPU", plural,
               "; start at most ", found, " rank", plural, " per host (tp x pp x dp = ", found,
               " on one host), or choose cpu; ", cleave::kHowToShare);
}
