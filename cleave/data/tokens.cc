#include "cleave/data/tokens.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/file/atomic_write.h"

namespace cleave::inline data {
namespace {

constexpr std::array<char, 8> kMagic{'c', 'l', 'v', 't', 'o', 'k', 'e', 'n'};
constexpr uint32_t kVersion = 1;

/// The first 64 bytes of a file. Without padding, so the checksum can cover its bytes.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t item_bytes = 0;
  uint64_t key = 0;
  uint64_t count = 0;
  int64_t max_id = -1;
  uint64_t checksum = 0;  ///< of the ids
  uint64_t reserved = 0;
  uint64_t header_checksum = 0;  ///< of all fields above
};
static_assert(sizeof(Header) == 64);

uint64_t checksum_of(const Header& header) {
  return hash_bytes(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, header_checksum)));
}

/// Checksum of the bytes after the header.
uint64_t checksum_of_ids(const File& file, uint64_t bytes) {
  constexpr uint64_t kPieceBytes = uint64_t{256} << 10;
  Hasher hasher;
  std::vector<std::byte> piece;
  for (uint64_t done = 0; done < bytes; done += piece.size()) {
    piece.resize(std::min(kPieceBytes, bytes - done));
    file.read_at(sizeof(Header) + done, piece);
    hasher.update(piece);
  }
  return hasher.digest();
}

bool is_good(const Header& header, uint64_t key, const File& file, uint64_t id_bytes) {
  return header.magic == kMagic && header.version == kVersion && header.key == key &&
         header.header_checksum == checksum_of(header) &&
         (header.item_bytes == 2 || header.item_bytes == 4) && id_bytes % header.item_bytes == 0 &&
         id_bytes / header.item_bytes == header.count &&
         header.checksum == checksum_of_ids(file, id_bytes);
}

template <class Item>
void append_as(std::span<const int64_t> ids, std::vector<std::byte>& memory) {
  const size_t before = memory.size();
  memory.resize(before + ids.size() * sizeof(Item));
  std::byte* out = memory.data() + before;
  for (const int64_t id : ids) {
    const auto item = static_cast<Item>(id);
    std::memcpy(out, &item, sizeof(Item));
    out += sizeof(Item);
  }
}

template <class Item>
void copy_as(std::span<const std::byte> bytes, std::span<int64_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    Item item = 0;
    std::memcpy(&item, bytes.data() + i * sizeof(Item), sizeof(Item));
    out[i] = item;
  }
}

}  // namespace

Tokens::Tokens(int64_t vocab_size)
    : vocab_size_(vocab_size),
      item_bytes_(vocab_size <= int64_t{std::numeric_limits<uint16_t>::max()} + 1 ? 2 : 4) {
  CLEAVE_CHECK(vocab_size <= int64_t{std::numeric_limits<uint32_t>::max()}, Code::kFormat,
               "a vocabulary of ", vocab_size, " ids; expected at most 2^32 - 1");
}

std::optional<Tokens> Tokens::open(const std::filesystem::path& path, uint64_t key) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  File file = File::open_read(path);
  const uint64_t size = file.size();
  Header header;
  if (size < sizeof(Header)) return std::nullopt;
  file.read_at(0, std::as_writable_bytes(std::span(&header, 1)));
  if (!is_good(header, key, file, size - sizeof(Header))) return std::nullopt;
  Tokens tokens(header.max_id + 1);
  tokens.item_bytes_ = header.item_bytes;
  tokens.max_id_ = header.max_id;
  tokens.file_ = std::move(file);
  tokens.file_bytes_ = size - sizeof(Header);
  tokens.file_checksum_ = header.checksum;
  return tokens;
}

void Tokens::append(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocab_size_) {
      CLEAVE_BUG("the tokenizer gave id ", id, "; its vocabulary has ", vocab_size_);
    }
    max_id_ = std::max(max_id_, id);
  }
  item_bytes_ == 2 ? append_as<uint16_t>(ids, memory_) : append_as<uint32_t>(ids, memory_);
}

int64_t Tokens::size() const {
  return static_cast<int64_t>((file_ ? file_bytes_ : memory_.size()) / item_bytes_);
}

int64_t Tokens::back() const {
  int64_t id = 0;
  copy(size() - 1, std::span(&id, 1));
  return id;
}

void Tokens::copy(int64_t first, std::span<int64_t> out) const {
  CLEAVE_CHECK(first >= 0 && static_cast<int64_t>(out.size()) <= size() - first, Code::kUsage,
               out.size(), " ids from ", first, " of ", size());
  const uint64_t begin = static_cast<uint64_t>(first) * item_bytes_;
  std::vector<std::byte> read;
  std::span<const std::byte> from = memory_;
  if (file_) {
    read.resize(out.size() * item_bytes_);
    file_->read_at(sizeof(Header) + begin, read);
    from = read;
  } else {
    from = from.subspan(begin);
  }
  item_bytes_ == 2 ? copy_as<uint16_t>(from, out) : copy_as<uint32_t>(from, out);
}

uint64_t Tokens::checksum() const {
  return file_ ? file_checksum_ : hash_bytes(memory_);
}

TokensWriter::TokensWriter(std::filesystem::path path, int64_t vocab_size)
    : path_(std::move(path)),
      partial_(path_.string() + std::string(kPartialSuffix)),
      block_(vocab_size) {
  if (::unlink(partial_.c_str()) != 0 && errno != ENOENT) {
    throw_io(partial_.string(), "unlink", errno);
  }
  file_ = File::create(partial_);
}

TokensWriter::~TokensWriter() {
  if (!is_committed_) ::unlink(partial_.c_str());
}

void TokensWriter::append(std::span<const int64_t> ids) {
  constexpr size_t kBlockBytes = size_t{1} << 20;
  block_.append(ids);
  if (block_.memory_.size() >= kBlockBytes) flush();
}

void TokensWriter::flush() {
  hasher_.update(block_.memory_);
  file_.write_at(sizeof(Header) + bytes_, block_.memory_);
  bytes_ += block_.memory_.size();
  block_.memory_.clear();
}

void TokensWriter::commit(uint64_t key) {
  flush();
  Header header;
  header.item_bytes = static_cast<uint32_t>(block_.item_bytes_);
  header.key = key;
  header.count = bytes_ / block_.item_bytes_;
  header.max_id = block_.max_id_;
  header.checksum = hasher_.digest();
  header.header_checksum = checksum_of(header);
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.sync();
  file_.close();
  rename_durably(partial_, path_);
  is_committed_ = true;
}

}  // namespace cleave::inline data
