#include "cleave/checkpoint/model_links.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "cleave/base/str.h"
#include "cleave/checkpoint/names.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/manifest.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

/// Whether a file of a checkpoint belongs to the model; the others serve resuming.
bool is_of_model(const std::string& name) {
  return !name.starts_with(kOptimizerStem) && name != kStateName && name != kReferenceName &&
         name != kManifestName;
}

std::vector<fs::path> paths_in(const fs::path& folder, std::error_code& problem) {
  std::vector<fs::path> paths;
  fs::directory_iterator at(folder, problem);
  for (; !problem && at != fs::directory_iterator(); at.increment(problem)) {
    paths.push_back(at->path());
  }
  return paths;
}

void link_atomically(const fs::path& target, const fs::path& link, std::error_code& problem) {
  std::error_code ignored;  // a link that cannot be read is replaced
  if (fs::read_symlink(link, ignored) == target) return;
  const fs::path partial = link.string() + std::string(kPartialSuffix);
  fs::remove(partial, ignored);
  fs::create_symlink(target, partial, problem);
  if (problem) return;
  fs::rename(partial, link, problem);
  if (problem) fs::remove(partial, ignored);
}

/// Whether a path is a link that this file made for some checkpoint.
bool is_model_link(const fs::path& path) {
  std::error_code is_none;
  const fs::path target = fs::read_symlink(path, is_none);
  return !is_none && target.filename() == path.filename() &&
         checkpoint_step(target.parent_path().string()).has_value();
}

}  // namespace

std::string link_model_files(const fs::path& run, const fs::path& checkpoint) {
  std::error_code problem;
  std::vector<std::string> names;
  for (const fs::path& path : paths_in(checkpoint, problem)) {
    if (is_of_model(path.filename())) names.push_back(path.filename());
  }
  if (problem) return str(checkpoint.string(), ": ", problem.message());
  for (const std::string& name : names) {
    link_atomically(checkpoint.filename() / name, run / name, problem);
    if (problem) return str((run / name).string(), ": ", problem.message());
  }
  for (const fs::path& path : paths_in(run, problem)) {
    const bool is_current = std::ranges::find(names, path.filename().string()) != names.end();
    if (!is_current && is_model_link(path)) fs::remove(path, problem);
  }
  return problem ? str(run.string(), ": ", problem.message()) : "";
}

}  // namespace cleave::inline checkpoint
