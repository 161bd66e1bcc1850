#include "cleave/mesh/cuda.h"

#include <dlfcn.h>
#include <filesystem>
#include <system_error>

#include "cleave/mesh/gpus.h"

namespace cleave::inline mesh {
namespace {

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

}  // namespace cleave::inline mesh

void cleave_require_gpus(int count) {
  using cleave::Code;
  const int found = cleave::cuda().num_gpus();
  const char* const plural = found == 1 ? "" : "s";
  CLEAVE_CHECK(count <= found, Code::kShape, "--device cuda: ", count,
               " ranks on this host need one GPU each; it has ", found, " GPU", plural,
               "; start at most ", found, " rank", plural, " per host (tp x pp x dp = ", found,
               " on one host), or choose cpu");
}
