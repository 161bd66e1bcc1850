#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/base/hash.h"
#include "cleave/data/documents.h"
#include "cleave/file/file.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::inline data {

/// Token ids in order, 2 bytes each if the vocabulary allows it, else 4. They are in memory, or in
/// a file that one process wrote and many read. The file is read, not mapped: if it is truncated
/// meanwhile, that is an Error(kFormat) and not a SIGBUS.
///
/// File: magic, version, bytes per id, key, number of ids, largest id, checksum of the ids,
/// checksum of the header so far; then the ids. Little-endian.
class Tokens {
 public:
  /// Empty, in memory, for ids below `vocab_size`.
  explicit Tokens(int64_t vocab_size);

  /// The ids in a file that TokensWriter made with this key. nullopt if the file is missing,
  /// damaged or has another key. Throws Error(kIo) if it cannot be read.
  static std::optional<Tokens> open(const std::filesystem::path& path, uint64_t key);
  /// Only for ids in memory. Throws Error(kBug) for an id outside the vocabulary.
  void append(std::span<const int64_t> ids);

  [[nodiscard]] int64_t size() const;
  [[nodiscard]] int64_t max_id() const { return max_id_; }  ///< -1 if empty
  [[nodiscard]] int64_t back() const;                       ///< the last id; not for an empty list
  /// Copies the ids first, first + 1, ... into `out`. Throws Error(kFormat) if the file was
  /// truncated.
  void copy(int64_t first, std::span<int64_t> out) const;
  /// XXH3 of the stored bytes.
  [[nodiscard]] uint64_t checksum() const;

 private:
  friend class TokensWriter;
  int64_t vocab_size_;
  uint64_t item_bytes_;
  int64_t max_id_ = -1;
  std::vector<std::byte> memory_;
  std::optional<File> file_;
  uint64_t file_bytes_ = 0, file_checksum_ = 0;  // of the ids in file_
};

/// Writes ids into a file for Tokens::open(), and holds only about a MiB of them in memory. The
/// file appears complete or not at all. One writer at a time.
class TokensWriter {
 public:
  /// Begins PATH.partial; one that a dead writer left is replaced. Throws Error(kIo).
  TokensWriter(std::filesystem::path path, int64_t vocab_size);
  ~TokensWriter();  ///< removes PATH.partial, if there was no commit()
  TokensWriter(const TokensWriter&) = delete;
  TokensWriter& operator=(const TokensWriter&) = delete;

  /// As Tokens::append(). Throws Error(kIo), also on a full disk.
  void append(std::span<const int64_t> ids);
  /// Writes the rest and renames the file to its name. Throws Error(kIo).
  void commit(uint64_t key);

 private:
  void flush();

  std::filesystem::path path_, partial_;
  File file_;
  Tokens block_;  // not written yet
  Hasher hasher_;
  uint64_t bytes_ = 0;  // of ids in the file
  bool is_committed_ = false;
};

/// The documents of a file of kind kText or kJsonTexts.
struct TokenizedFile {
  Tokens ids;  ///< of all documents, in order
  /// How many ids each document of kJsonTexts has. Empty for kText, which is one document.
  Tokens lengths;
};

/// Tokenizes a file. Each document ends with the tokenizer's end id, if it has one; a document
/// without a token has no ids and no length.
///
/// With a `cache_folder` (created if missing) the ids are stored there under a hash of the file's
/// content and the tokenizer, and later calls of any process read them from there. If several
/// processes call at the same time, one tokenizes. Throws Error(kIo, kFormat) with file and line.
TokenizedFile tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                             const std::string& cache_folder);

}  // namespace cleave::inline data
