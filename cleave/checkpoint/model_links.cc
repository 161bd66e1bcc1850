#include "cleave/checkpoint/model_links.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
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
  std::error_code ignored;
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

bool has_same_bytes(const fs::path& a, const fs::path& b) {
  std::error_code problem;
  const auto size = fs::file_size(a, problem);
  if (problem || fs::file_size(b, problem) != size || problem) return false;
  std::ifstream in_a(a, std::ios::binary), in_b(b, std::ios::binary);
  std::vector<char> bytes_a(size_t{1} << 20), bytes_b(bytes_a.size());
  for (uintmax_t done = 0; done < size; done += bytes_a.size()) {
    const auto count =
        static_cast<std::streamsize>(std::min<uintmax_t>(bytes_a.size(), size - done));
    if (!in_a.read(bytes_a.data(), count) || !in_b.read(bytes_b.data(), count)) return false;
    if (!std::equal(bytes_a.begin(), bytes_a.begin() + count, bytes_b.begin())) return false;
  }
  return true;
}

/// Whether a link may replace what is at `path`: nothing, a link of this file, or a copy of a
/// checkpoint's file, which `scp -r` makes of a link. The user's own files stay.
bool is_replaceable(const fs::path& path, const std::vector<fs::path>& checkpoints) {
  std::error_code problem;
  const fs::file_status status = fs::symlink_status(path, problem);
  if (status.type() == fs::file_type::not_found || is_model_link(path)) return true;
  return fs::is_regular_file(status) &&
         std::ranges::any_of(checkpoints, [&](const fs::path& checkpoint) {
           return has_same_bytes(path, checkpoint / path.filename());
         });
}

}  // namespace

std::string link_model_files(const fs::path& run, const fs::path& checkpoint) {
  std::error_code problem;
  std::vector<std::string> names;
  for (const fs::path& path : paths_in(checkpoint, problem)) {
    if (is_of_model(path.filename())) names.push_back(path.filename());
  }
  if (problem) return str(checkpoint.string(), ": ", problem.message());
  std::vector<fs::path> checkpoints;
  for (const fs::path& path : paths_in(run, problem)) {
    const std::string name = path.filename();
    if (checkpoint_step(name)) checkpoints.push_back(path);
    const bool is_current = std::ranges::find(names, name) != names.end();
    if (!is_current && is_model_link(path)) fs::remove(path, problem);
  }
  if (problem) return str(run.string(), ": ", problem.message());
  std::string kept;
  for (const std::string& name : names) {
    const fs::path target = checkpoint.filename() / name;
    std::error_code is_none;
    if (fs::read_symlink(run / name, is_none) == target) continue;
    if (!is_replaceable(run / name, checkpoints)) {
      kept = str((run / name).string(),
                 ": the file is not from a checkpoint of this run, so it is not replaced");
      continue;
    }
    link_atomically(target, run / name, problem);
    if (problem) return str((run / name).string(), ": ", problem.message());
  }
  return kept;
}

}  // namespace cleave::inline checkpoint
