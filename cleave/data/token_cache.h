#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/data/reading_progress.h"
#include "cleave/data/tokens.h"

namespace cleave::inline data {

/// What a progress counts while files are tokenized.
inline constexpr const char* kTokenized = "tokenized MiB";
/// The limit of the numbers in TokenizedFile::lengths.
inline constexpr int64_t kLongestDocument = int64_t{1} << 31;

/// Receives the next numbers of a list.
using TakeNumbers = std::function<void(std::span<const int64_t>)>;

/// What receives the ids of files, and the lengths of their documents.
struct TakeDocuments {
  TakeNumbers ids, lengths;
};

/// Files, and how their ids are made.
struct TokenSource {
  std::vector<std::string> files;
  std::vector<uint64_t> settings;  ///< all that the ids depend on, except the bytes of the files
  int64_t vocab_size = 0;          ///< the ids are below
  bool has_lengths = true;
  /// Passes on the ids and lengths of all files, in order.
  std::function<void(ReadingProgress& progress, const TakeDocuments& take)> tokenize;
};

/// The ids of the files from `cache_folder` (created if missing), which holds them under a hash of
/// the files' bytes and the settings. If it does not, the files are tokenized; of several processes
/// that call at the same time, one does it. nullopt on a disk without locks, where they would write
/// the same files. Throws Error(kIo), also for a file that changes meanwhile; Stopped; what
/// `tokenize` throws.
std::optional<TokenizedFile> cached_tokens(const TokenSource& source,
                                           const std::string& cache_folder);

}  // namespace cleave::inline data
