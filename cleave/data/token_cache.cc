#include "cleave/data/token_cache.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <system_error>
#include <unistd.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file.h"
#include "cleave/file/file_lock.h"

namespace cleave::inline data {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHashedBlock = size_t{1} << 20;

/// XXH3 of each file, read in blocks. Throws Stopped on a signal.
std::vector<uint64_t> hashes_of(const std::vector<std::string>& files,
                                const std::string& cache_folder) {
  ReadingProgress progress = common_progress(files, "checked MiB", cache_folder);
  std::vector<uint64_t> hashes;
  for (const std::string& path : files) {
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
    progress.end_file();
    hashes.push_back(hasher.digest());
  }
  return hashes;
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

/// The files of a cache that hold the ids of a source and the lengths of its documents.
class CachedFiles {
 public:
  CachedFiles(const fs::path& folder, uint64_t key, bool has_lengths)
      : key_(key),
        has_lengths_(has_lengths),
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
  /// Tokenizes the files and writes both. Throws Error(kIo) if one has changed since its hash.
  void write(const TokenSource& source, const std::vector<uint64_t>& contents) const {
    ReadingProgress progress(source.files, {.unit = kTokenized});  // whichever process comes first
    TokensWriter ids(ids_, source.vocab_size);
    TokensWriter lengths(lengths_, kLongestDocument);
    source.tokenize(progress, {.ids = [&](auto part) { ids.append(part); },
                               .lengths = [&](auto part) { lengths.append(part); }});
    const std::vector<uint64_t> now = hashes_of(source.files, ids_.parent_path());
    for (size_t i = 0; i < now.size(); ++i) {
      CLEAVE_CHECK(now[i] == contents[i], Code::kIo, source.files[i],
                   " changed while it was read; run again when the file is complete");
    }
    if (has_lengths_) lengths.commit(key_);
    ids.commit(key_);
  }
  [[nodiscard]] std::string name() const { return ids_.string(); }

 private:
  uint64_t key_;
  bool has_lengths_;
  fs::path ids_, lengths_;
};

}  // namespace

std::optional<TokenizedFile> cached_tokens(const TokenSource& source,
                                           const std::string& cache_folder) {
  const std::vector<uint64_t> contents = hashes_of(source.files, cache_folder);
  std::vector<uint64_t> identity = source.settings;
  identity.insert(identity.end(), contents.begin(), contents.end());
  const uint64_t key = hash_bytes(std::as_bytes(std::span(identity)));
  const CachedFiles cached(cache_folder, key, source.has_lengths);
  if (std::optional<TokenizedFile> file = cached.open()) return file;

  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) throw_io(cache_folder, "mkdir", error.value());
  const CacheLock lock(cache_folder);
  if (!lock.is_held()) return std::nullopt;
  if (std::optional<TokenizedFile> file = cached.open()) return file;
  remove_partial_files(cache_folder);
  cached.write(source, contents);
  std::optional<TokenizedFile> file = cached.open();
  CLEAVE_CHECK(
      file.has_value(), Code::kIo, cached.name(),
      fs::exists(cached.name(), error)
          ? " does not read back as it was written; the disk is faulty"
          : " was removed as soon as it was written, for example by another rank whose start "
            "failed");
  return file;
}

}  // namespace cleave::inline data
