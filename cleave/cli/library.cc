#include "cleave/cli/library.h"

#include <dlfcn.h>
#include <filesystem>
#include <system_error>
#include <vector>

#include "cleave/base/error.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLibrary = "libcleave.so";

// Beside the program in a build tree, in the library folder of an install.
std::vector<fs::path> candidates() {
  std::error_code problem;
  const fs::path program = fs::read_symlink("/proc/self/exe", problem);
  CLEAVE_CHECK(!problem, Code::kIo, "/proc/self/exe: cannot be read: ", problem.message());
  const fs::path folder = program.parent_path();
  return {folder / kLibrary, (folder / CLEAVE_LIBRARY_FOLDER / kLibrary).lexically_normal()};
}

void* load() {
  const std::vector<fs::path> paths = candidates();
  for (const fs::path& path : paths) {
    if (std::error_code problem; !fs::exists(path, problem)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    CLEAVE_CHECK(library != nullptr, Code::kIo, path.string(), " cannot be loaded: ",
                 dlerror());  // NOLINT(concurrency-mt-unsafe): glibc keeps one a thread
    return library;
  }
  throw Error(Code::kIo, str("there is no ", paths.front().string(), " or ", paths.back().string(),
                             "; this command needs a build with libtorch (./run build)"));
}

}  // namespace

void* library_symbol(const char* name) {
  static void* const library = load();
  void* symbol = dlsym(library, name);
  CLEAVE_CHECK(symbol != nullptr, Code::kIo, kLibrary, " has no ", name,
               "; program and library are of different versions");
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
