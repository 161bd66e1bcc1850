#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/hash.h"
#include "cleave/file/file.h"

namespace cleave {

/// A long row of ids, in memory or in a mapped file.
struct TokenStream {
  std::span<const int32_t> ids;
  int64_t max_id = -1;
  std::shared_ptr<const void> owner;  ///< keeps the ids alive
};

/// Opens a token file that was written for `key`; nothing when there is none, it belongs to another
/// key or version, or its checksum is wrong: then it is made anew.
std::optional<TokenStream> open_token_file(const std::filesystem::path& path, uint64_t key);

/// Collects ids, in memory or in a token file.
///
/// A token file is a header of 64 bytes (magic, version, key, number of ids, largest id, hash of
/// the ids, hash of the header) and the ids as 32-bit integers, little endian. It is written under
/// another name and renamed when it is whole, so several processes may write the same one at once.
class TokenWriter {
 public:
  /// An empty `path` keeps the ids in memory. Throws Error(kIo).
  TokenWriter(std::filesystem::path path, uint64_t key);
  ~TokenWriter();
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void append(std::span<const int64_t> ids);
  /// Finishes the file and opens it; call once.
  TokenStream finish();

 private:
  void write_pending();

  std::filesystem::path path_, partial_;
  uint64_t key_;
  File file_;
  Hasher hasher_;
  std::vector<int32_t> pending_;  // not written yet; all of them without a file
  uint64_t num_written_ = 0;
  int64_t max_id_ = -1;
};

}  // namespace cleave
