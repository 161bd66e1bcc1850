#pragma once
#include <filesystem>

namespace cleave::cli {

/// The environment variable by which Cleave's launcher says to its ranks that it cleans up a failed
/// start: "1".
inline constexpr const char* kCleansUpVariable = "CLEAVE_CLEANS_UP";
/// Whether a launcher has said so to this process.
bool launcher_cleans_up();

/// Removes what a run made in its --out folder if the run fails before its first step. Construct it
/// before the run starts. If Cleave's launcher knows the folder, it cleans up when all ranks have
/// ended (kCleansUpVariable); otherwise each rank does.
class FailedStart {
 public:
  /// Notes what of the folder and its parents exists.
  explicit FailedStart(const std::filesystem::path& out);

  /// Removes the token cache, an empty metrics.jsonl with its report.json, and the folders that did
  /// not exist before, if nothing else is in the run folder and no other process writes there.
  /// Ignores errors: the failure of the start is reported.
  void clean_up() const;

 private:
  void remove_unused() const;

  std::filesystem::path out_, tokens_, metrics_, record_;
  bool has_tokens_, has_metrics_;
  std::filesystem::path kept_;  // the innermost folder on the path that existed
};

}  // namespace cleave::cli
