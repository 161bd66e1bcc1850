#include "cleave/file/latest.h"

#include <string>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/file/file.h"

namespace cleave {

namespace fs = std::filesystem;

fs::path resolve_run_folder(const fs::path& folder) {
  constexpr uint64_t kMaxBytes = 4096;
  const fs::path latest = folder / kLatestName;
  std::error_code ignored;  // a file that cannot be accessed counts as missing
  if (fs::exists(folder / "config.json", ignored) || !fs::exists(latest, ignored)) return folder;
  std::string name = read_file(latest, kMaxBytes);
  if (name.ends_with('\n')) name.pop_back();
  CLEAVE_CHECK(is_file_name(name), Code::kFormat, latest.string(), " holds '", name,
               "'; expected the name of a checkpoint folder");
  CLEAVE_CHECK(fs::is_directory(folder / name, ignored), Code::kIo, latest.string(), " names ",
               name,
               ", which is not there; restore it, or write the name of another checkpoint there");
  return folder / name;
}

}  // namespace cleave
