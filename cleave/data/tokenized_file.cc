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

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/base/progress.h"
#include "cleave/base/stop.h"
#include "cleave/comm/bootstrap/environment.h"
#include "cleave/data/text_ids.h"
#include "cleave/data/tokens.h"
#include "cleave/file/atomic_write.h"

namespace cleave::inline data {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCacheVersion = 1;              // of the rule that turns documents into ids
constexpr size_t kHashedBlock = size_t{1} << 20;   // of a file that is hashed
constexpr size_t kPieceBytes = size_t{256} << 10;  // of a text that is tokenized

/// XXH3 of a file, read in blocks.
uint64_t hash_file(const std::string& path) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::vector<std::byte> block(std::min<uint64_t>(kHashedBlock, size));
  Hasher hasher;
  for (uint64_t at = 0; at < size; at += kHashedBlock) {
    const auto piece = std::span(block).first(std::min<uint64_t>(kHashedBlock, size - at));
    file.read_at(at, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

using Take = std::function<void(std::span<const int64_t>)>;

/// Shows how far a file is tokenized, once that takes more than a second, and ends it on a signal.
class Watch {
 public:
  Watch(const std::string& path, bool is_shown)
      : total_(mebibytes(File::open_read(path).size()) + 1), is_shown_(is_shown) {}

  /// `done`: bytes of the file. Throws Stopped.
  void note(uint64_t done) {
    if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
    if (!is_shown_ || (!progress_ && monotonic_s() - start_s_ < 1)) return;
    if (!progress_) {
      progress_ = std::make_unique<Progress>(
          ProgressOptions{.total = total_,
                          .unit = "tokenized MiB",
                          .may_be_live = !read_environment().has_value()});
    }
    progress_->update(mebibytes(done));
  }

 private:
  static int64_t mebibytes(uint64_t bytes) { return static_cast<int64_t>(bytes >> 20); }

  int64_t total_;
  bool is_shown_;
  double start_s_ = monotonic_s();
  std::unique_ptr<Progress> progress_;
};

/// Passes on the ids of documents.
class Ids {
 public:
  Ids(const Tokenizer& tokenizer, const Take& take) : tokenizer_(tokenizer), take_(take) {}

  void put(std::span<const int64_t> ids) {
    if (ids.empty()) return;
    last_ = ids.back();
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
  void end_document() {
    const std::optional<int64_t> end = tokenizer_.special().eos;
    if (end && last_ != end) put(std::array{*end});
  }

 private:
  const Tokenizer& tokenizer_;
  const Take& take_;
  std::optional<int64_t> last_;
};

void tokenize(const std::string& path, FileKind kind, const Tokenizer& tokenizer, Watch& watch,
              const Take& take) {
  Ids ids(tokenizer, take);
  if (kind == FileKind::kJsonTexts) {
    for_each_json_text(path, [&](std::string_view text, uint64_t bytes_read) {
      watch.note(bytes_read);
      if (text.empty()) return;
      ids.put(tokenizer.encode(text));
      ids.end_document();
    });
    return;
  }
  bool has_begun = false;
  for_text_ids(path, tokenizer, kPieceBytes, [&](std::span<const int64_t> part, uint64_t done) {
    if (!has_begun) ids.put_special(/*before=*/true);
    has_begun = true;
    ids.put(part);
    watch.note(done);
  });
  if (!has_begun) return;  // an empty file
  ids.put_special(/*before=*/false);
  ids.end_document();
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
    while (::flock(fd_, LOCK_EX) != 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      ::close(fd_);
      throw_io(path.string(), "flock", error);
    }
  }
  ~CacheLock() { ::close(fd_); }
  CacheLock(const CacheLock&) = delete;
  CacheLock& operator=(const CacheLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace

Tokens tokenized_file(const std::string& path, FileKind kind, const Tokenizer& tokenizer,
                      const std::string& cache_folder) {
  Watch watch(path, !cache_folder.empty());
  if (cache_folder.empty()) {
    Tokens tokens(tokenizer.vocab_size());
    tokenize(path, kind, tokenizer, watch, [&](auto ids) { tokens.append(ids); });
    return tokens;
  }
  const uint64_t content = hash_file(path);
  const std::array<uint64_t, 5> identity{
      kCacheVersion, static_cast<uint64_t>(kind), content, tokenizer.fingerprint(),
      static_cast<uint64_t>(tokenizer.special().eos.value_or(-1))};
  const uint64_t key = hash_bytes(std::as_bytes(std::span(identity)));
  const fs::path cache = fs::path(cache_folder) / (to_hex(key) + ".tokens");
  if (std::optional<Tokens> tokens = Tokens::open(cache, key)) return std::move(*tokens);

  std::error_code error;
  fs::create_directories(cache_folder, error);
  if (error) throw_io(cache_folder, "mkdir", error.value());
  const CacheLock lock(cache_folder);
  if (std::optional<Tokens> tokens = Tokens::open(cache, key)) return std::move(*tokens);
  remove_partial_files(cache_folder);
  TokensWriter writer(cache, tokenizer.vocab_size());
  tokenize(path, kind, tokenizer, watch, [&](auto ids) { writer.append(ids); });
  CLEAVE_CHECK(hash_file(path) == content, Code::kIo, path,
               " changed while it was read; run again when the file is complete");
  writer.commit(key);
  std::optional<Tokens> tokens = Tokens::open(cache, key);
  CLEAVE_CHECK(tokens.has_value(), Code::kIo, cache.string(),
               " does not read back as it was written; the disk is faulty");
  return std::move(*tokens);
}

}  // namespace cleave::inline data
