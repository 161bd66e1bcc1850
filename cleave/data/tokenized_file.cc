#include "cleave/data/tokenized_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <sys/file.h>
#include <unistd.h>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kCacheVersion = 1;  // of the rule that turns documents into ids
constexpr size_t kBlock = size_t{1} << 20;

/// XXH3 of a file, read in blocks.
uint64_t hash_file(const std::string& path) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::vector<std::byte> block(std::min<uint64_t>(kBlock, size));
  Hasher hasher;
  for (uint64_t at = 0; at < size; at += kBlock) {
    const auto piece = std::span(block).first(std::min<uint64_t>(kBlock, size - at));
    file.read_at(at, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

void append_document(Tokens& tokens, std::string_view text, const Tokenizer& tokenizer) {
  if (text.empty()) return;
  // The byte tokenizer encodes each byte separately, and its only special token contains no blank.
  // So blocks that end with a blank give the same ids with a fraction of the memory.
  while (tokenizer.kind() == "bytes" && text.size() > kBlock) {
    const size_t blank = text.find_first_of(" \n", kBlock);
    if (blank == std::string_view::npos) break;
    tokens.append(tokenizer.encode(text.substr(0, blank + 1)));
    text.remove_prefix(blank + 1);
  }
  tokens.append(tokenizer.encode(text));
  const std::optional<int64_t> end = tokenizer.special().eos;
  if (end && (tokens.size() == 0 || tokens.back() != *end)) tokens.append(std::array{*end});
}

Tokens tokenize(const std::string& path, FileKind kind, const Tokenizer& tokenizer) {
  Tokens tokens(tokenizer.vocab_size());
  for_each_document(path, kind,
                    [&](std::string_view text) { append_document(tokens, text, tokenizer); });
  return tokens;
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
  if (cache_folder.empty()) return tokenize(path, kind, tokenizer);
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
  const Tokens made = tokenize(path, kind, tokenizer);
  CLEAVE_CHECK(hash_file(path) == content, Code::kIo, path,
               " changed while it was read; run again when the file is complete");
  made.write(cache, key);
  std::optional<Tokens> tokens = Tokens::open(cache, key);
  CLEAVE_CHECK(tokens.has_value(), Code::kIo, cache.string(),
               " does not read back as it was written; the disk is faulty");
  return std::move(*tokens);
}

}  // namespace cleave
