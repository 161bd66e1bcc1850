#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <memory>
#include <sys/file.h>
#include <unistd.h>
#include <vector>

#include <ATen/Parallel.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/data/reading_progress.h"
#include "cleave/data/text_ids.h"
#include "cleave/data/tokens.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file_lock.h"

namespace cleave::inline data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCacheVersion = 2;                  // of the rule that turns documents into ids
constexpr size_t kHashedBlock = size_t{1} << 20;       // of a file that is hashed
constexpr size_t kTextPieceBytes = size_t{256} << 10;  // of a text that is tokenized
constexpr const char* kTokenized = "tokenized MiB";    // what a progress counts

/// XXH3 of a file, read in blocks. Throws Stopped on a signal.
uint64_t hash_file(const std::string& path, const std::string& cache_folder) {
  ReadingProgress progress = common_progress({path}, "checked MiB", cache_folder);
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::vector<std::byte> block(std::min<uint64_t>(kHashedBlock, size));
  Hasher hasher;
  for (uint64_t at = 0; at < size; at += kHashedBlock) {
    progress.note(at);
    const auto piece = std::span(block).first(std::min<uint64_t>(kHashedBlock, size - at));
    file.read_at(at, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

constexpr int64_t kLongestDocument = int64_t{1} << 31;  // in ids

using Take = std::function<void(std::span<const int64_t>)>;

/// What receives a file's ids, and the lengths of its documents.
struct TakeDocuments {
  Take ids, lengths;
};

/// Passes on the ids of a document.
class Ids {
 public:
  Ids(const Tokenizer& tokenizer, const Take& take) : tokenizer_(tokenizer), take_(take) {}

  void put(std::span<const int64_t> ids) {
    if (ids.empty()) return;
    last_ = ids.back();
    length_ += static_cast<int64_t>(ids.size());
    take_(ids);
  }
  /// The special tokens that encode() adds before or after a text.
  void put_special(bool before) {
    bool is_before = true;
    for (const TemplateStep& step : tokenizer_.sequence_template().single) {
      if (step.what != TemplateStep::What::kToken) {
        is_before = false;
      } else if (is_before == before) {
        put(std::array{step.id});
      }
    }
  }
  /// Puts the end id after a document that has ids. Returns how many ids it has.
  int64_t end() {
    const std::optional<int64_t> end = tokenizer_.special().eos;
    if (length_ > 0 && end && last_ != end) put(std::array{*end});
    return length_;
  }

 private:
  const Tokenizer& tokenizer_;
  const Take& take_;
  std::optional<int64_t> last_;
  int64_t length_ = 0;
};

/// Documents that are tokenized together, on all threads.
class TextBatch {
 public:
  TextBatch(const Tokenizer& tokenizer, ReadingProgress& progress, const TakeDocuments& take)
      : tokenizer_(tokenizer), progress_(progress), take_(take) {}

  /// `bytes_read`: of the file, up to the end of the document.
  void add(std::string_view text, uint64_t bytes_read) {
    bytes_ += text.size();
    texts_.emplace_back(text);
    bytes_read_ = bytes_read;
    if (bytes_ >= kBatchBytes) flush();
  }
  /// Passes on the ids of the documents, in order.
  void flush() {
    std::vector<std::vector<int64_t>> encoded(texts_.size());
    at::parallel_for(0, std::ssize(texts_), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        encoded[i] = tokenizer_.encode(texts_[i]);
      }
    });
    progress_.note(bytes_read_);
    for (const std::vector<int64_t>& own : encoded) {
      Ids ids(tokenizer_, take_.ids);
      ids.put(own);
      const int64_t length = ids.end();
      if (length > 0) take_.lengths(std::array{length});
    }
    texts_.clear();
    bytes_ = 0;
  }

 private:
  static constexpr size_t kBatchBytes = size_t{1} << 20;  // each has up to 8 bytes of ids
  const Tokenizer& tokenizer_;
  ReadingProgress& progress_;
  const TakeDocuments& take_;
  std::vector<std::string> texts_;
  size_t bytes_ = 0;         // of texts_
  uint64_t bytes_read_ = 0;  // of the file
};

void tokenize(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
              ReadingProgress& progress, const TakeDocuments& take) {
  if (kind == FileKind::kJsonTexts) {
    TextBatch batch(tokenizer, progress, take);
    for_each_json_text(path, [&](std::string_view text, uint64_t bytes_read) {
      if (!text.empty()) batch.add(text, bytes_read);
    });
    batch.flush();
    return;
  }
  Ids ids(tokenizer, take.ids);
  bool has_begun = false;
  for_text_ids(path, tokenizer, kTextPieceBytes, [&](std::span<const int64_t> part, uint64_t done) {
    if (!has_begun) ids.put_special(/*before=*/true);
    has_begun = true;
    ids.put(part);
    progress.note(done);
  });
  if (!has_begun) return;  // an empty file
  ids.put_special(/*before=*/false);
  ids.end();
}

/// Removes what writers that were killed have left. The caller holds the folder's lock.
void remove_partial_files(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const bool is_partial = entry.path().string().ends_with(str(".tokens", kPartialSuffix));
    if (is_partial) fs::remove(entry.path(), ignored);
  }
}

/// Exclusive lock for writing to a cache folder. The kernel releases it when the holder dies.
/// Unlike FileLock it waits, because the holder produces the file that the waiter needs.
class CacheLock {
 public:
  explicit CacheLock(const fs::path& folder) {
    const fs::path path = folder / ".tokens.lock";
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd_ < 0) throw_io(path.string(), "open", errno);
    int error = EINTR;
    while (error == EINTR) {
      error = call_file_hook(FileCall::kLock, path.string());
      if (error == 0 && ::flock(fd_, LOCK_EX) != 0) error = errno;
    }
    is_held_ = error == 0;
    if (is_held_ || lacks_locks(error)) return;
    ::close(fd_);
    throw_io(path.string(), name(FileCall::kLock), error);
  }
  ~CacheLock() { ::close(fd_); }
  /// False on a disk without locks.
  [[nodiscard]] bool is_held() const { return is_held_; }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_ = -1;
  bool is_held_ = false;
};

/// The files of a cache that hold a data file's ids and its documents' lengths.
class CachedFile {
 public:
  CachedFile(const fs::path& folder, uint64_t key, FileKind kind)
      : key_(key),
        has_lengths_(kind == FileKind::kJsonTexts),
        ids_(folder / (to_hex(key) + ".tokens")),
        lengths_(folder / (to_hex(key) + ".lengths.tokens")) {}

  /// Opens both files; nullopt unless both are there and intact.
  [[nodiscard]] std::optional<TokenizedFile> open() const {
    std::optional<Tokens> ids = Tokens::open(ids_, key_);
    if (!ids) return std::nullopt;
    std::optional<Tokens> lengths(kLongestDocument);
    if (has_lengths_) lengths = Tokens::open(lengths_, key_);
    if (!lengths) return std::nullopt;
    return TokenizedFile{.ids = std::move(*ids), .lengths = std::move(*lengths)};
  }
  /// Tokenizes the file and writes both. Throws Error(kIo) if it has changed since its hash.
  void write(const std::string& path, uint64_t content, const Tokenizer& tokenizer,
             ReadingProgress& progress) const {
    TokensWriter ids(ids_, tokenizer.vocab_size());
    TokensWriter lengths(lengths_, kLongestDocument);
    tokenize(path, has_lengths_ ? FileKind::kJsonTexts : FileKind::kText, tokenizer, progress,
             {.ids = [&](auto part) { ids.append(part); },
              .lengths = [&](auto part) { lengths.append(part); }});
    CLEAVE_CHECK(hash_file(path, ids_.parent_path()) == content, Code::kIo, path,
                 " changed while it was read; run again when the file is complete");
    if (has_lengths_) lengths.commit(key_);
    ids.commit(key_);
  }
  [[nodiscard]] std::string name() const { return ids_.string(); }

 private:
  uint64_t key_;
  bool has_lengths_;
  fs::path ids_, lengths_;
};

TokenizedFile tokenized_in_memory(const std::string& path, FileKind kind,
                                  const Tokenizer& tokenizer) {
  ReadingProgress progress = common_progress({path}, kTokenized, "");
  TokenizedFile file{.ids = Tokens(tokenizer.vocab_size()), .lengths = Tokens(kLongestDocument)};
  tokenize(path, kind, tokenizer, progress,
           {.ids = [&](auto part) { file.ids.append(part); },
            .lengths = [&](auto part) { file.lengths.append(part); }});
  return file;
}

}  // namespace

TokenizedFile tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                             const std::string& cache_folder) {
  if (cache_folder.empty()) return tokenized_in_memory(path, kind, tokenizer);
  const uint64_t content = hash_file(path, cache_folder);
  const std::array<uint64_t, 5> identity{
      kCacheVersion, static_cast<uint64_t>(kind), content, tokenizer.fingerprint(),
      static_cast<uint64_t>(tokenizer.special().eos.value_or(-1))};
  const uint64_t key = hash_bytes(std::as_bytes(std::span(identity)));
  const CachedFile cached(cache_folder, key, kind);
  if (std::optional<TokenizedFile> file = cached.open()) return std::move(*file);

  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) throw_io(cache_folder, "mkdir", error.value());
  const CacheLock lock(cache_folder);
  // Several processes would write the same files.
  if (!lock.is_held()) return tokenized_in_memory(path, kind, tokenizer);
  if (std::optional<TokenizedFile> file = cached.open()) return std::move(*file);
  remove_partial_files(cache_folder);
  ReadingProgress progress({path}, {.unit = kTokenized});  // whichever process comes first
  cached.write(path, content, tokenizer, progress);
  std::optional<TokenizedFile> file = cached.open();
  CLEAVE_CHECK(
      file.has_value(), Code::kIo, cached.name(),
      fs::exists(cached.name(), error)
          ? " does not read back as it was written; the disk is faulty"
          : " was removed as soon as it was written, for example by another rank whose start "
            "failed");
  return std::move(*file);
}

}  // namespace cleave::inline data
