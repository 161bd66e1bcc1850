#include "cleave/cli/library.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <sys/resource.h>
#include <system_error>
#include <vector>

#include "cleave/base/error.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libcleave.so";
constexpr const char* kInstall =
    "; run ./run build in a clone, or install Cleave again with its libtorch (docs/installing.md)";
constexpr const char* kFreeMemory = "; end other programs, or raise the memory limit";

// The program's folder in a build tree, and the library folder of an install.
std::vector<fs::path> candidates() {
  std::error_code problem;
  const fs::path program = fs::read_symlink("/proc/self/exe", problem);
  CLEAVE_CHECK(!problem, Code::kIo, "/proc/self/exe: cannot be read: ", problem.message(),
               "; mount /proc");
  const fs::path folder = program.parent_path();
  return {folder / kLibrary, (folder / CLEAVE_LIBRARY_FOLDER / kLibrary).lexically_normal()};
}

/// Loading libtorch without enough address space ends the process, so the limit is checked before.
void require_address_space() {
  constexpr rlim_t kNeeded = rlim_t{512} << 20;  // libtorch for CPUs and its initialization
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  CLEAVE_CHECK(limit.rlim_cur >= kNeeded, Code::kMemory, "libtorch needs at least ", kNeeded >> 20,
               " MiB of address space, the limit is ", limit.rlim_cur >> 20,
               " MiB; raise it with ulimit -v unlimited");
}

/// oneMKL ends the process when it is first used in a folder that was deleted, and names its
/// library as the cause.
void require_current_folder() {
  std::error_code problem;
  (void)fs::current_path(problem);
  CLEAVE_CHECK(problem != std::errc::no_such_file_or_directory, Code::kIo,
               "the current folder was deleted; change to one that exists (cd)");
}

/// Limits busy waiting of libgomp's threads to a fraction of a millisecond, unless the user sets
/// it. A busy-waiting thread takes the core that another program, or the team's own last thread,
/// needs: on a busy machine the work takes ten times as long.
void limit_busy_waiting() {
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread exists before the library is loaded
  if (getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "10000", /*replace=*/0);
  // NOLINTEND(concurrency-mt-unsafe)
}

void* load() {
  require_address_space();
  require_current_folder();
  limit_busy_waiting();
  const std::vector<fs::path> paths = candidates();
  for (const fs::path& path : paths) {
    if (std::error_code problem; !fs::exists(path, problem)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (library != nullptr) return library;
    const std::string why = dlerror();  // NOLINT(concurrency-mt-unsafe): per thread in glibc
    const bool is_full = why.find("failed to map") != std::string::npos ||
                         why.find("annot allocate memory") != std::string::npos;
    throw Error(is_full ? Code::kMemory : Code::kIo,
                str(path.string(), " cannot be loaded: ", why, is_full ? kFreeMemory : kInstall));
  }
  throw Error(Code::kIo, str("there is no ", paths.front().string(), " or ", paths.back().string(),
                             ", which this command needs", kInstall));
}

}  // namespace

void* library_symbol(const char* name) {
  static void* const library = load();
  void* symbol = dlsym(library, name);
  CLEAVE_CHECK(symbol != nullptr, Code::kIo, kLibrary, " has no ", name,
               "; program and library have different versions");
  return symbol;
}

bool has_library_symbol(const char* name, std::string* why) {
  try {
    library_symbol(name);
    return true;
  } catch (const Error& error) {
    *why = error.what();
    return false;
  }
}

}  // namespace cleave::cli
