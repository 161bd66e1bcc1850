#include "cleave/format/zip.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "cleave/base/checked.h"
#include "cleave/text/utf8.h"

namespace cleave::inline format {
namespace {

constexpr uint32_t kLocalHeader = 0x04034b50, kDirectoryEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30, kDirectoryEntryBytes = 46, kEndBytes = 22;
constexpr uint64_t kEnd64Bytes = 56, kEnd64LocatorBytes = 20;
constexpr uint16_t kFlagSizesFollow = 1U << 3, kFlagUtf8 = 1U << 11;
constexpr uint16_t kZip64 = 1, kPadding = 0x4246;  // ids of extra fields; "FB" is torch's padding
constexpr uint16_t kVersion64 = 45;
constexpr uint32_t kIn64 = UINT32_MAX;  // marker: the value is in the zip64 field
constexpr uint64_t kMaxDirectoryBytes = uint64_t{256} << 20;
constexpr size_t kMaxNameBytes = 1024;
constexpr uint64_t kAlignment = 64;

/// Reads little-endian numbers in sequence, with a check of the end.
class Fields {
 public:
  Fields(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  template <class T>
  T next() {
    const std::string_view raw = take(sizeof(T));
    uint64_t value = 0;
    for (size_t i = sizeof(T); i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return static_cast<T>(value);
  }
  std::string_view take(size_t count) {
    CLEAVE_CHECK(count <= bytes_.size(), Code::kFormat, source_,
                 ": the zip directory ends in the middle of an entry");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  [[nodiscard]] bool is_done() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  const std::string& source_;
};

std::string read_bytes(const File& file, uint64_t at, uint64_t count) {
  std::string bytes(count, '\0');
  file.read_at(at, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

/// Offset and size of the central directory, and its number of entries.
struct Directory {
  uint64_t begin = 0, bytes = 0, count = 0;
};

void require_equal_or(uint64_t narrow, uint64_t wide, uint64_t marker, const std::string& source) {
  CLEAVE_CHECK(narrow == wide || narrow == marker, Code::kFormat, source,
               ": the zip file's end and zip64 end contradict each other, ", narrow, " and ", wide);
}

/// Reads the zip64 end, if there is one, and checks it against the values of the normal end.
/// Returns whether there is one.
bool read_end64(const File& file, uint64_t end_at, Directory& directory) {
  const std::string& source = file.path();
  if (end_at < kEnd64LocatorBytes + kEnd64Bytes) return false;
  const uint64_t locator_at = end_at - kEnd64LocatorBytes;
  const std::string locator_bytes = read_bytes(file, locator_at, kEnd64LocatorBytes);
  Fields locator(locator_bytes, source);
  if (locator.next<uint32_t>() != kEnd64Locator) return false;
  const auto disk = locator.next<uint32_t>();
  const auto at = locator.next<uint64_t>();
  const auto disks = locator.next<uint32_t>();
  CLEAVE_CHECK(disk == 0 && disks <= 1 && at == locator_at - kEnd64Bytes, Code::kFormat, source,
               ": the zip64 locator points to byte ", at, "; expected byte ",
               locator_at - kEnd64Bytes);
  const std::string end_bytes = read_bytes(file, at, kEnd64Bytes);
  Fields end(end_bytes, source);
  CLEAVE_CHECK(end.next<uint32_t>() == kEnd64 && end.next<uint64_t>() == kEnd64Bytes - 12,
               Code::kFormat, source, ": there is no zip64 end at byte ", at);
  end.take(4);  // versions
  const bool is_one_disk = end.next<uint32_t>() == 0 && end.next<uint32_t>() == 0;
  const auto count_here = end.next<uint64_t>();
  const auto count = end.next<uint64_t>();
  const auto bytes = end.next<uint64_t>();
  const auto begin = end.next<uint64_t>();
  CLEAVE_CHECK(is_one_disk && count_here == count, Code::kFormat, source,
               ": zip files on several disks are not read");
  require_equal_or(directory.count, count, UINT16_MAX, source);
  require_equal_or(directory.bytes, bytes, kIn64, source);
  require_equal_or(directory.begin, begin, kIn64, source);
  directory = {begin, bytes, count};
  CLEAVE_CHECK(begin <= at && bytes == at - begin, Code::kFormat, source, ": the zip directory of ",
               bytes, " bytes at byte ", begin,
               " does not end where the zip64 end begins, at byte ", at);
  return true;
}

Directory find_directory(const File& file) {
  const std::string& source = file.path();
  const uint64_t size = file.size();
  CLEAVE_CHECK(size >= kEndBytes, Code::kFormat, source, " has ", size,
               " bytes; a zip file has at least ", kEndBytes, ", it is truncated");
  const uint64_t end_at = size - kEndBytes;
  const std::string end_bytes = read_bytes(file, end_at, kEndBytes);
  Fields end(end_bytes, source);
  CLEAVE_CHECK(end.next<uint32_t>() == kEnd, Code::kFormat, source,
               " does not end as a zip file does; it is truncated, or has bytes or a comment after "
               "it");
  const bool is_one_disk = end.next<uint16_t>() == 0 && end.next<uint16_t>() == 0;
  const auto count_here = end.next<uint16_t>();
  Directory directory;
  directory.count = end.next<uint16_t>();
  directory.bytes = end.next<uint32_t>();
  directory.begin = end.next<uint32_t>();
  CLEAVE_CHECK(is_one_disk && count_here == directory.count, Code::kFormat, source,
               ": zip files on several disks are not read");
  CLEAVE_CHECK(end.next<uint16_t>() == 0, Code::kFormat, source, ": the zip file has a comment");
  const bool is_wide = read_end64(file, end_at, directory);
  CLEAVE_CHECK(is_wide || directory.begin + directory.bytes == end_at, Code::kFormat, source,
               ": the zip directory of ", directory.bytes, " bytes at byte ", directory.begin,
               " does not end where the zip file's end begins, at byte ", end_at);
  CLEAVE_CHECK(directory.bytes <= kMaxDirectoryBytes &&
                   directory.count <= directory.bytes / kDirectoryEntryBytes,
               Code::kFormat, source, ": ", directory.count,
               " entries cannot be in a directory of ", directory.bytes,
               " bytes; expected at most ", kMaxDirectoryBytes, " bytes");
  return directory;
}

/// Replaces the values that are kIn64 by those of the zip64 field; `values` are in its order.
void widen(std::string_view extra, std::array<uint64_t*, 3> values, const std::string& source) {
  Fields fields(extra, source);
  bool found = false;
  while (!fields.is_done()) {
    const auto id = fields.next<uint16_t>();
    Fields body(fields.take(fields.next<uint16_t>()), source);
    if (id != kZip64) continue;
    CLEAVE_CHECK(!found, Code::kFormat, source, ": an entry has two zip64 fields");
    found = true;
    for (uint64_t* value : values) {
      if (value != nullptr && *value == kIn64) *value = body.next<uint64_t>();
    }
  }
}

/// One entry of the central directory.
struct DirectoryEntry {
  std::string name;
  uint16_t flags = 0;
  uint64_t bytes = 0;
  uint64_t header_at = 0;
};

void check_name(const std::string& name, const std::string& source) {
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
  CLEAVE_CHECK(!name.empty() && name.size() <= kMaxNameBytes && is_printable &&
                   first_bad_utf8(name) == name.size(),
               Code::kFormat, source, ": the name of a zip entry has ", name.size(),
               " bytes or is not printable; expected 1 to ", kMaxNameBytes,
               " bytes of printable UTF-8");
}

void check_stored(uint16_t flags, uint16_t method, const std::string& what) {
  CLEAVE_CHECK((flags & ~(kFlagSizesFollow | kFlagUtf8)) == 0, Code::kFormat, what,
               " is encrypted or uses features that torch does not write; its flags are ", flags);
  CLEAVE_CHECK(method == 0, Code::kFormat, what, " is compressed (method ", method,
               "); expected stored entries, load the file with torch and save it again");
}

DirectoryEntry read_directory_entry(Fields& fields, const std::string& source) {
  CLEAVE_CHECK(fields.next<uint32_t>() == kDirectoryEntry, Code::kFormat, source,
               ": the zip directory has no entry where one should begin");
  fields.take(4);  // versions
  DirectoryEntry listed;
  listed.flags = fields.next<uint16_t>();
  const auto method = fields.next<uint16_t>();
  fields.take(8);  // time, date, checksum
  uint64_t stored_bytes = fields.next<uint32_t>();
  listed.bytes = fields.next<uint32_t>();
  const auto name_bytes = fields.next<uint16_t>();
  const auto extra_bytes = fields.next<uint16_t>();
  const auto comment_bytes = fields.next<uint16_t>();
  const auto disk = fields.next<uint16_t>();
  fields.take(6);  // attributes
  listed.header_at = fields.next<uint32_t>();
  listed.name = fields.take(name_bytes);
  check_name(listed.name, source);
  const std::string what = str(source, ": zip entry '", listed.name, "'");
  widen(fields.take(extra_bytes), {&listed.bytes, &stored_bytes, &listed.header_at}, what);
  fields.take(comment_bytes);
  check_stored(listed.flags, method, what);
  CLEAVE_CHECK(disk == 0 && stored_bytes == listed.bytes, Code::kFormat, what, " has ",
               listed.bytes, " bytes, stored in ", stored_bytes, " on disk ", disk,
               "; expected the same number, on disk 0");
  return listed;
}

/// Checks an entry's local header against the directory and returns where its bytes are.
ZipEntry locate(const File& file, const DirectoryEntry& listed, uint64_t data_end) {
  const std::string what = str(file.path(), ": zip entry '", listed.name, "'");
  CLEAVE_CHECK(listed.header_at <= data_end && data_end - listed.header_at >= kLocalHeaderBytes,
               Code::kFormat, what, " should begin at byte ", listed.header_at,
               "; the entries end at byte ", data_end);
  const std::string head = read_bytes(file, listed.header_at, kLocalHeaderBytes);
  Fields fields(head, what);
  CLEAVE_CHECK(fields.next<uint32_t>() == kLocalHeader, Code::kFormat, what,
               " has no header at byte ", listed.header_at);
  fields.take(2);  // version
  const auto flags = fields.next<uint16_t>();
  const auto method = fields.next<uint16_t>();
  fields.take(8);  // time, date, checksum
  uint64_t stored_bytes = fields.next<uint32_t>();
  uint64_t bytes = fields.next<uint32_t>();
  const auto name_bytes = fields.next<uint16_t>();
  const auto extra_bytes = fields.next<uint16_t>();
  const uint64_t begin = listed.header_at + kLocalHeaderBytes + name_bytes + extra_bytes;
  CLEAVE_CHECK(begin <= data_end && listed.bytes <= data_end - begin, Code::kFormat, what, " has ",
               listed.bytes, " bytes from byte ", begin, "; the entries end at byte ", data_end);
  const std::string rest =
      read_bytes(file, listed.header_at + kLocalHeaderBytes, name_bytes + extra_bytes);
  check_stored(flags, method, what);
  CLEAVE_CHECK(rest.substr(0, name_bytes) == listed.name, Code::kFormat, what,
               " has another name in its local header");
  widen(std::string_view(rest).substr(name_bytes), {&bytes, &stored_bytes, nullptr}, what);
  const bool sizes_follow = (flags & kFlagSizesFollow) != 0 && bytes == 0 && stored_bytes == 0;
  CLEAVE_CHECK(sizes_follow || (bytes == listed.bytes && stored_bytes == listed.bytes),
               Code::kFormat, what, " has ", listed.bytes, " bytes in the directory and ", bytes,
               " in its local header");
  return {listed.name, begin, begin + listed.bytes};
}

template <class T>
void put(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>(static_cast<uint64_t>(value) >> 8 * i & 0xff));
  }
}

uint32_t narrow(uint64_t value) {
  return static_cast<uint32_t>(std::min<uint64_t>(value, kIn64));
}

/// The common fields of local headers and directory entries, from "version needed" to name length.
void put_common(std::string& out, const ZipEntry& entry, uint32_t checksum) {
  put<uint16_t>(out, kVersion64);
  put<uint16_t>(out, kFlagUtf8);
  put<uint16_t>(out, 0);       // stored
  put<uint16_t>(out, 0);       // time
  put<uint16_t>(out, 0x0021);  // date: 1980-01-01, so that equal contents give equal files
  put<uint32_t>(out, checksum);
  put<uint32_t>(out, narrow(entry.end - entry.begin));
  put<uint32_t>(out, narrow(entry.end - entry.begin));
  put<uint16_t>(out, static_cast<uint16_t>(entry.name.size()));
}

/// The zip64 field with those values that do not fit in 32 bits; empty if there are none.
std::string wide_field(std::initializer_list<uint64_t> values) {
  std::string body, field;
  for (const uint64_t value : values) {
    if (value >= kIn64) put<uint64_t>(body, value);
  }
  if (body.empty()) return field;
  put<uint16_t>(field, kZip64);
  put<uint16_t>(field, static_cast<uint16_t>(body.size()));
  return field + body;
}

}  // namespace

std::vector<ZipEntry> read_zip(const File& file) {
  const Directory directory = find_directory(file);
  const std::string bytes = read_bytes(file, directory.begin, directory.bytes);
  Fields fields(bytes, file.path());
  std::vector<std::pair<uint64_t, ZipEntry>> found;  // offset of the local header, entry
  std::set<std::string> names;
  for (uint64_t i = 0; i < directory.count; ++i) {
    const DirectoryEntry listed = read_directory_entry(fields, file.path());
    CLEAVE_CHECK(names.insert(listed.name).second, Code::kFormat, file.path(), ": zip entry '",
                 listed.name, "' occurs twice");
    found.emplace_back(listed.header_at, locate(file, listed, directory.begin));
  }
  CLEAVE_CHECK(fields.is_done(), Code::kFormat, file.path(), ": the zip directory has more than ",
               directory.count, " entries");
  std::sort(found.begin(), found.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<ZipEntry> entries;
  for (auto& [header_at, entry] : found) {
    CLEAVE_CHECK(entries.empty() || entries.back().end <= header_at, Code::kFormat, file.path(),
                 ": zip entry '", entry.name, "' overlaps '", entries.back().name, "'");
    entries.push_back(std::move(entry));
  }
  return entries;
}

ZipPlan::ZipPlan(const std::vector<Item>& items) {
  uint64_t at = 0;
  for (const Item& item : items) {
    headers_.push_back(at);
    // Space for the largest zip64 field, then padding up to the alignment (the field's head is 4).
    const uint64_t used = at + kLocalHeaderBytes + item.name.size() + 20 + 4;
    const uint64_t begin = (used + kAlignment - 1) / kAlignment * kAlignment;
    at = checked_add(begin, item.bytes, item.name);
    entries_.push_back({item.name, begin, at});
  }
}

std::string ZipPlan::local_header(size_t index, uint32_t checksum) const {
  const ZipEntry& entry = entries_[index];
  const uint64_t bytes = entry.end - entry.begin;
  std::string header;
  put<uint32_t>(header, kLocalHeader);
  put_common(header, entry, checksum);
  std::string extra = wide_field({bytes, bytes});
  const uint64_t extra_bytes =
      entry.begin - headers_[index] - kLocalHeaderBytes - entry.name.size();
  put<uint16_t>(extra, kPadding);
  put<uint16_t>(extra, static_cast<uint16_t>(extra_bytes - extra.size() - 2));
  extra.resize(extra_bytes, 'Z');
  put<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  return header + entry.name + extra;
}

std::string ZipPlan::directory(const std::vector<uint32_t>& checksums) const {
  std::string bytes;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const ZipEntry& entry = entries_[i];
    const uint64_t size = entry.end - entry.begin;
    const std::string extra = wide_field({size, size, headers_[i]});
    put<uint32_t>(bytes, kDirectoryEntry);
    put<uint16_t>(bytes, kVersion64);
    put_common(bytes, entry, checksums.empty() ? 0 : checksums[i]);
    put<uint16_t>(bytes, static_cast<uint16_t>(extra.size()));
    put<uint64_t>(bytes, 0);  // comment, disk, internal and half of the external attributes
    put<uint16_t>(bytes, 0);  // the other half
    put<uint32_t>(bytes, narrow(headers_[i]));
    bytes += entry.name + extra;
  }
  return bytes;
}

uint64_t ZipPlan::total_bytes() const {
  const uint64_t data_end = entries_.empty() ? 0 : entries_.back().end;
  return data_end + directory({}).size() + kEnd64Bytes + kEnd64LocatorBytes + kEndBytes;
}

void ZipPlan::write_headers(File& file, const std::vector<uint32_t>& checksums) const {
  CLEAVE_CHECK(checksums.size() == entries_.size(), Code::kUsage, "a zip file of ", entries_.size(),
               " entries needs as many checksums; got ", checksums.size());
  const auto write = [&](uint64_t at, const std::string& bytes) {
    file.write_at(at, std::as_bytes(std::span(bytes)));
  };
  for (size_t i = 0; i < entries_.size(); ++i) write(headers_[i], local_header(i, checksums[i]));
  const uint64_t begin = entries_.empty() ? 0 : entries_.back().end;
  std::string end = directory(checksums);
  const uint64_t directory_bytes = end.size(), count = entries_.size();
  put<uint32_t>(end, kEnd64);
  put<uint64_t>(end, kEnd64Bytes - 12);
  put<uint32_t>(end, kVersion64 << 16 | kVersion64);
  put<uint64_t>(end, 0);  // disks
  for (const uint64_t value : {count, count, directory_bytes, begin}) put<uint64_t>(end, value);
  put<uint32_t>(end, kEnd64Locator);
  put<uint32_t>(end, 0);  // disk
  put<uint64_t>(end, begin + directory_bytes);
  put<uint32_t>(end, 1);  // number of disks
  put<uint32_t>(end, kEnd);
  put<uint32_t>(end, 0);  // disks
  const auto narrow_count = static_cast<uint16_t>(std::min<uint64_t>(count, UINT16_MAX));
  put<uint16_t>(end, narrow_count);
  put<uint16_t>(end, narrow_count);
  put<uint32_t>(end, narrow(directory_bytes));
  put<uint32_t>(end, narrow(begin));
  put<uint16_t>(end, 0);  // comment
  write(begin, end);
}

}  // namespace cleave::inline format
