#include "cleave/data/token_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <unistd.h>

#include "cleave/base/error.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/mapped_file.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMagic = 0x4E454B4F54564C43;  // "CLVTOKEN"
constexpr uint64_t kVersion = 1;
constexpr size_t kBlock = size_t{1} << 18;  // ids held before they are written

struct Header {
  uint64_t magic = kMagic;
  uint64_t version = kVersion;
  uint64_t key = 0;
  uint64_t num_ids = 0;
  int64_t max_id = -1;
  uint64_t ids_hash = 0;
  uint64_t reserved = 0;
  uint64_t header_hash = 0;  // of all above

  [[nodiscard]] uint64_t hash() const {
    return hash_bytes(std::as_bytes(std::span(this, 1)).first(offsetof(Header, header_hash)));
  }
};
static_assert(sizeof(Header) == 64);

}  // namespace

std::optional<TokenStream> open_token_file(const fs::path& path, uint64_t key) {
  if (!fs::exists(path)) return std::nullopt;
  auto file = std::make_shared<const MappedFile>(path);
  if (file->size() < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, file->bytes().data(), sizeof header);
  const std::span<const std::byte> ids = file->bytes().subspan(sizeof header);
  const bool ours = header.magic == kMagic && header.version == kVersion && header.key == key &&
                    header.header_hash == header.hash();
  if (!ours || ids.size() % sizeof(int32_t) != 0 ||
      header.num_ids != ids.size() / sizeof(int32_t) || header.ids_hash != hash_bytes(ids)) {
    return std::nullopt;
  }
  // The mapping begins at a page and the header has 64 bytes: the ids are aligned.
  const std::span<const int32_t> values(reinterpret_cast<const int32_t*>(ids.data()),
                                        header.num_ids);
  return TokenStream{.ids = values, .max_id = header.max_id, .owner = std::move(file)};
}

TokenWriter::TokenWriter(fs::path path, uint64_t key) : path_(std::move(path)), key_(key) {
  if (path_.empty()) return;
  partial_ = str(path_.string(), ".", getpid(), kPartialSuffix);
  fs::remove(partial_);  // of a dead process that had our number
  file_ = File::create(partial_);
  const Header header;
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
}

TokenWriter::~TokenWriter() {
  if (!file_.is_open()) return;
  std::error_code ignored;  // already failing: the cause is on its way up
  fs::remove(partial_, ignored);
}

void TokenWriter::append(std::span<const int64_t> ids) {
  for (const int64_t id : ids) {
    max_id_ = std::max(max_id_, id);
    pending_.push_back(static_cast<int32_t>(id));
  }
  if (file_.is_open() && pending_.size() >= kBlock) write_pending();
}

void TokenWriter::write_pending() {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(pending_));
  file_.write_at(sizeof(Header) + num_written_ * sizeof(int32_t), bytes);
  hasher_.update(bytes);
  num_written_ += pending_.size();
  pending_.clear();
}

TokenStream TokenWriter::finish() {
  if (!file_.is_open()) {
    auto ids = std::make_shared<const std::vector<int32_t>>(std::move(pending_));
    return {.ids = *ids, .max_id = max_id_, .owner = ids};
  }
  write_pending();
  Header header;
  header.key = key_;
  header.num_ids = num_written_;
  header.max_id = max_id_;
  header.ids_hash = hasher_.digest();
  header.header_hash = header.hash();
  file_.write_at(0, std::as_bytes(std::span(&header, 1)));
  file_.sync();
  file_.close();
  rename_durably(partial_, path_);
  std::optional<TokenStream> stream = open_token_file(path_, key_);
  CLEAVE_CHECK(stream, Code::kIo, path_.string(), ": the ", num_written_,
               " ids just written do not read back; check the disk");
  return *std::move(stream);
}

}  // namespace cleave
