#include "cleave/cli/failed_start.h"

#include <cstdlib>
#include <optional>
#include <system_error>

#include "cleave/base/error.h"
#include "cleave/file/bare_lock.h"
#include "cleave/report/metrics.h"
#include "cleave/report/record.h"

namespace cleave::cli {
namespace {

namespace fs = std::filesystem;

/// Also true for a link whose target is missing, for example on a disk that is not mounted.
bool is_there(const fs::path& path) {
  std::error_code unknown;
  return fs::exists(fs::symlink_status(path, unknown));
}

/// The absolute path, without a slash at the end.
fs::path plain(const fs::path& path) {
  const fs::path normal = fs::absolute(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path innermost_existing(fs::path path) {
  while (!is_there(path) && path.has_relative_path()) path = path.parent_path();
  return path;
}

/// The lock of the folder, so that what a killed process left there is removed too; nullopt if
/// another process writes there. The disk may be full.
std::optional<BareLock> locked(const fs::path& folder) {
  try {
    return std::optional<BareLock>(std::in_place, folder);
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

bool launcher_cleans_up() {
  return std::getenv(kCleansUpVariable) != nullptr;  // NOLINT(concurrency-mt-unsafe)
}

FailedStart::FailedStart(const fs::path& out)
    : out_(plain(out)),
      tokens_(out_ / kTokensName),
      metrics_(out_ / kMetricsName),
      record_(out_ / kRecordName),
      has_tokens_(is_there(tokens_)),
      has_metrics_(is_there(metrics_)),
      kept_(innermost_existing(out_)) {}

void FailedStart::clean_up() const {
  std::error_code ignored;
  if (is_there(out_)) remove_unused();
  // A folder that is not empty is not removed.
  for (fs::path path = out_; path != kept_ && fs::remove(path, ignored);) path = path.parent_path();
}

void FailedStart::remove_unused() const {
  const std::optional<BareLock> lock = locked(out_);
  if (!lock) return;
  std::error_code ignored;
  const bool has_steps = is_there(metrics_) && fs::file_size(metrics_, ignored) > 0;
  bool is_unused = !has_steps;
  fs::directory_iterator entry(out_, ignored);
  for (; !ignored && entry != fs::directory_iterator(); entry.increment(ignored)) {
    const fs::path& path = entry->path();
    is_unused = is_unused && (path == tokens_ || path == metrics_ || path == record_ ||
                              path.filename() == ".lock");
  }
  if (!is_unused) return;
  if (!has_tokens_) fs::remove_all(tokens_, ignored);
  if (!has_metrics_) {
    fs::remove(metrics_, ignored);
    fs::remove(record_, ignored);
  }
}

}  // namespace cleave::cli
