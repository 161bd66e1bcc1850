#include "cleave/format/torch_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"

namespace cleave::inline format {
namespace {

using Entries = std::map<std::string, ZipEntry, std::less<>>;

// The first bytes of a zip file, and of a file from before torch 1.6 (a pickled magic number).
constexpr std::string_view kZipMagic = "PK\x03\x04";
constexpr std::string_view kLegacyMagic = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.";

std::string read_text(const File& file, const ZipEntry& entry, uint64_t max_bytes) {
  const uint64_t bytes = entry.end - entry.begin;
  CLEAVE_CHECK(bytes <= max_bytes, Code::kFormat, file.path(), ": '", entry.name, "' has ", bytes,
               " bytes; expected at most ", max_bytes);
  std::string text(bytes, '\0');
  file.read_at(entry.begin, std::as_writable_bytes(std::span(text)));
  return text;
}

void require_zip(const File& file) {
  const std::string& path = file.path();
  std::string first(std::min<uint64_t>(file.size(), kLegacyMagic.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(first)));
  CLEAVE_CHECK(
      first != kLegacyMagic, Code::kFormat, path,
      " is in torch's format from before version 1.6, which is not a zip file; load it with "
      "torch and save it again");
  CLEAVE_CHECK(!first.starts_with('\x80'), Code::kFormat, path,
               " is a bare pickle; expected a zip file as torch.save writes it");
  CLEAVE_CHECK(
      first.starts_with(kZipMagic), Code::kFormat, path,
      " is not a zip file as torch.save writes it; it is truncated or another kind of file");
}

/// The "NAME/" of the only NAME/data.pkl, with which all entries begin.
std::string find_prefix(const Entries& entries, const std::string& path) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string prefix;
  for (const auto& [name, entry] : entries) {
    if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
    CLEAVE_CHECK(prefix.empty(), Code::kFormat, path, " has both ", prefix, "data.pkl and ", name);
    prefix = name.substr(0, name.size() - kPickle.size() + 1);
  }
  CLEAVE_CHECK(!prefix.empty(), Code::kFormat, path,
               " has no data.pkl inside; it is a zip file that torch.save did not write");
  CLEAVE_CHECK(!entries.contains(prefix + "constants.pkl"), Code::kFormat, path,
               " is a TorchScript program; expected tensors saved by torch.save");
  return prefix;
}

}  // namespace

TorchFile TorchFile::open(const std::filesystem::path& path) {
  return TorchFile(File::open_read(path));
}

TorchFile::TorchFile(File file) : file_(std::move(file)) {
  require_zip(file_);
  Entries entries;
  for (ZipEntry& entry : read_zip(file_)) entries[entry.name] = std::move(entry);
  const std::string prefix = find_prefix(entries, path());
  if (const auto order = entries.find(prefix + "byteorder"); order != entries.end()) {
    const std::string text = read_text(file_, order->second, 16);
    CLEAVE_CHECK(text == "little", Code::kFormat, path(), ": its byte order is '", text,
                 "'; expected 'little'");
  }
  Unpickled unpickled =
      read_pickle(read_text(file_, entries.at(prefix + "data.pkl"), kMaxPickleBytes), path());
  for (const SavedStorage& storage : unpickled.storages) {
    const auto found = entries.find(str(prefix, "data/", storage.key));
    CLEAVE_CHECK(found != entries.end(), Code::kFormat, path(), ": storage '", storage.key,
                 "' is missing from the file");
    const uint64_t bytes = found->second.end - found->second.begin;
    const uint64_t needed =
        checked_mul(storage.num_elements, static_cast<uint64_t>(item_bytes(storage.dtype)), path());
    CLEAVE_CHECK(bytes == needed, Code::kFormat, path(), ": storage '", storage.key, "' has ",
                 bytes, " bytes; ", storage.num_elements, " elements of ", name(storage.dtype),
                 " need ", needed);
    storages_.push_back(found->second);
  }
  value_ = std::move(unpickled.value);
}

void TorchFile::read_block(const SavedTensor& tensor, std::span<const Slice> slices,
                           std::span<std::byte> out) const {
  const int64_t item = item_bytes(tensor.dtype);
  const uint64_t begin =
      storages_.at(tensor.storage).begin + tensor.first * static_cast<uint64_t>(item);
  StoredElements elements = {begin, item, tensor.shape};
  if (!tensor.is_contiguous()) elements.strides = tensor.strides;
  read_elements(file_, elements, slices, out, str("a tensor of ", path()));
}

bool is_torch_file_name(std::string_view name) {
  return name.ends_with(".bin") || name.ends_with(".pt");
}

}  // namespace cleave::inline format
