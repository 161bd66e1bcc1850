#pragma once
#include <cstdint>
#include <string>
#include <vector>

/// Handmade zip files and pickles, valid or with an error in any place, to test their readers.
namespace cleave::test {

/// The low `bytes` bytes of a number, little-endian.
inline std::string number(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i, value >>= 8) out.push_back(static_cast<char>(value & 0xff));
  return out;
}

/// An entry of a zip file; the headers can differ from the contents.
struct ZipItem {
  std::string name, bytes;
  uint16_t flags = 0x808, method = 0;  ///< torch's: sizes follow the data, UTF-8
  std::string local_name{};            ///< "": the same as name
  uint64_t extra_bytes_claimed = 0;    ///< added to the size in the directory
  uint64_t header_moved = 0;           ///< added to the header's offset in the directory
  std::string local_extra{}, extra{}, comment{};
};

/// A zip file in torch's format: entries, directory, zip64 end, end.
inline std::string zip(const std::vector<ZipItem>& items, bool with_end64 = true) {
  std::string out, directory;
  for (const ZipItem& item : items) {
    const uint64_t at = out.size();
    const std::string local = item.local_name.empty() ? item.name : item.local_name;
    const std::string head = number(item.flags, 2) + number(item.method, 2) + number(0, 8);
    const bool sizes_follow = (item.flags & 8) != 0;
    const std::string sizes = number(sizes_follow ? 0 : item.bytes.size(), 4);
    out += "PK\x03\x04" + number(0, 2) + head + sizes + sizes + number(local.size(), 2) +
           number(item.local_extra.size(), 2) + local + item.local_extra + item.bytes;
    const std::string claimed = number(item.bytes.size() + item.extra_bytes_claimed, 4);
    directory += "PK\x01\x02" + number(0, 4) + head + claimed + claimed +
                 number(item.name.size(), 2) + number(item.extra.size(), 2) +
                 number(item.comment.size(), 2) + number(0, 2 + 6) +
                 number(at + item.header_moved, 4) + item.name + item.extra + item.comment;
  }
  const uint64_t begin = out.size(), count = items.size();
  out += directory;
  if (with_end64) {
    const uint64_t end = out.size();
    out += "PK\x06\x06" + number(44, 8) + number(0, 4) + number(0, 8) + number(count, 8) +
           number(count, 8) + number(directory.size(), 8) + number(begin, 8);
    out += "PK\x06\x07" + number(0, 4) + number(end, 8) + number(1, 4);
  }
  out += "PK\x05\x06" + number(0, 4) + number(count, 2) + number(count, 2) +
         number(directory.size(), 4) + number(begin, 4) + number(0, 2);
  return out;
}

// Pickle operations.
inline std::string text(const std::string& value) {
  return "X" + number(value.size(), 4) + value;
}
inline std::string integer(int64_t value) {
  return "\x8a\x08" + number(static_cast<uint64_t>(value), 8);
}
inline std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
inline std::string tuple(const std::vector<int64_t>& values) {
  std::string out = "(";
  for (const int64_t value : values) out += integer(value);
  return out + "t";
}
/// A tensor's storage: `type` is a name in torch.
inline std::string storage(const std::string& key, int64_t elements,
                           const std::string& type = "FloatStorage") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cpu") +
         integer(elements) + "tQ";
}
inline std::string tensor(const std::string& of_storage, int64_t first,
                          const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + of_storage + integer(first) +
         tuple(shape) + tuple(strides) + "\x89" + global("collections", "OrderedDict") + ")RtR";
}
/// PROTO 2, the operations, STOP.
inline std::string pickle(const std::string& operations) {
  return "\x80\x02" + operations + ".";
}
/// A dict of one member.
inline std::string dict_of(const std::string& key, const std::string& value) {
  return "}" + text(key) + value + "s";
}

/// A torch file with this pickle and storages "0", "1", ... of these bytes.
inline std::string torch_file(const std::string& pickled,
                              const std::vector<std::string>& storages) {
  std::vector<ZipItem> items = {{"x/data.pkl", pickled}, {"x/byteorder", "little"}};
  for (size_t i = 0; i < storages.size(); ++i) {
    items.push_back({"x/data/" + std::to_string(i), storages[i]});
  }
  items.push_back({"x/version", "3\n"});
  return zip(items);
}

}  // namespace cleave::test
