#include "cleave/format/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"
#include "cleave/format/gguf_parts.h"
#include "cleave/text/utf8.h"

namespace cleave::inline format {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kInt4GroupElements = 32;
constexpr size_t kMaxDims = 4;                         // GGML_MAX_DIMS
constexpr size_t kWindow = size_t{1} << 16;            // bytes of the header read at a time
constexpr uint64_t kDecodedChunk = uint64_t{1} << 20;  // bytes of blocks decoded at a time

/// Bytes of a value of a kind that is neither a string nor an array.
size_t bytes_of(GgufKind kind) {
  switch (kind) {
    case GgufKind::kU8:
    case GgufKind::kI8:
    case GgufKind::kBool:
      return 1;
    case GgufKind::kU16:
    case GgufKind::kI16:
      return 2;
    case GgufKind::kU64:
    case GgufKind::kI64:
    case GgufKind::kF64:
      return 8;
    default:
      return 4;
  }
}

/// Reads the header from front to back; no read goes beyond the end of the file.
class Reader {
 public:
  explicit Reader(const File& file) : file_(file), size_(file.size()) {}

  [[nodiscard]] uint64_t position() const { return at_; }
  [[nodiscard]] uint64_t left() const { return size_ - at_; }

  void take(std::span<std::byte> out, std::string_view what) {
    require(out.size(), what);
    for (size_t done = 0; done < out.size();) {
      if (at_ < begin_ || at_ >= begin_ + window_.size()) {
        window_.resize(static_cast<size_t>(std::min<uint64_t>(kWindow, left())));
        begin_ = at_;
        file_.read_at(begin_, window_);
      }
      const auto inside = static_cast<size_t>(at_ - begin_);
      const size_t count = std::min(out.size() - done, window_.size() - inside);
      std::memcpy(out.data() + done, window_.data() + inside, count);
      done += count;
      at_ += count;
    }
  }

  /// A little-endian number of 1 to 8 bytes.
  uint64_t number(size_t bytes, std::string_view what) {
    std::array<std::byte, 8> raw{};
    take(std::span(raw).first(bytes), what);
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<uint64_t>(raw[i]);
    return value;
  }

  std::string string(std::string_view what, uint64_t most = UINT64_MAX) {
    const uint64_t bytes = number(8, what);
    CLEAVE_CHECK(bytes <= most, Code::kFormat, file_.path(), ": ", what, " has ", bytes,
                 " bytes; expected at most ", most);
    require(bytes, what);
    std::string text(static_cast<size_t>(bytes), '\0');
    take(std::as_writable_bytes(std::span(text)), what);
    const size_t bad = first_bad_utf8(text);
    CLEAVE_CHECK(bad == text.size(), Code::kFormat, file_.path(), ": ", what,
                 " is not UTF-8 at byte ", bad, " of it");
    return text;
  }

  /// Checks that `bytes` more are in the file.
  void require(uint64_t bytes, std::string_view what) const {
    CLEAVE_CHECK(bytes <= left(), Code::kFormat, file_.path(), ": ", what, " at byte ", at_,
                 " needs ", bytes, " bytes; only ", left(), " are left, it is truncated");
  }

 private:
  const File& file_;
  uint64_t size_, at_ = 0, begin_ = 0;
  std::vector<std::byte> window_;
};

/// Reads the metadata.
class MetadataReader {
 public:
  MetadataReader(Reader& reader, std::string source)
      : reader_(reader), metadata_(std::move(source)) {}

  GgufMetadata read(uint64_t count) {
    for (uint64_t i = 0; i < count; ++i) {
      std::string key = reader_.string("the key of a metadata entry", kMaxGgufKey);
      check_key(key);
      what_ = str("metadata '", key, "'");
      GgufValue value = read_value(key);
      metadata_.add(std::move(key), std::move(value));
    }
    return std::move(metadata_);
  }

 private:
  void check_key(const std::string& key) const {
    const bool is_printable =
        std::all_of(key.begin(), key.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    if (key.empty() || !is_printable) {
      metadata_.fail(replace_control(key), "expected a key of printable ASCII characters");
    }
  }

  static std::string replace_control(std::string key) {
    std::replace_if(
        key.begin(), key.end(), [](char c) { return c < 0x20 || c == 0x7f; }, '?');
    return key.substr(0, 60);
  }

  GgufKind read_kind(const std::string& key) {
    const uint64_t number = reader_.number(4, what_);
    if (number > static_cast<uint64_t>(GgufKind::kF64)) {
      metadata_.fail(key, str("its type is ", number, "; expected 0 to 12"));
    }
    return static_cast<GgufKind>(number);
  }

  GgufValue read_value(const std::string& key) {
    const GgufKind kind = read_kind(key);
    if (kind == GgufKind::kArray) return read_array(key);
    if (kind == GgufKind::kString) return {kind, read_string()};
    if (kind == GgufKind::kBool) return {kind, read_int(kind, key) != 0};
    if (kind == GgufKind::kF32 || kind == GgufKind::kF64) return {kind, read_float(kind)};
    return {kind, read_int(kind, key)};
  }

  GgufValue read_array(const std::string& key) {
    const GgufKind kind = read_kind(key);
    if (kind == GgufKind::kArray) metadata_.fail(key, "arrays of arrays are not supported");
    const uint64_t count = reader_.number(8, what_);
    const uint64_t least_bytes = kind == GgufKind::kString ? 8 : bytes_of(kind);
    if (count > kMaxGgufElements - num_elements_) {
      metadata_.fail(
          key, str("it has ", count, " elements; all arrays together may have ", kMaxGgufElements));
    }
    num_elements_ += count;
    reader_.require(count * least_bytes, what_);
    const auto filled = [count](auto list, const auto& next) {
      list.reserve(static_cast<size_t>(count));
      for (uint64_t i = 0; i < count; ++i) list.push_back(next());
      return list;
    };
    if (kind == GgufKind::kString) {
      return {kind, filled(GgufValue::Strings(), [&] { return read_string(); })};
    }
    if (kind == GgufKind::kF32 || kind == GgufKind::kF64) {
      return {kind, filled(GgufValue::Numbers(), [&] { return read_float(kind); })};
    }
    return {kind, filled(GgufValue::Ints(), [&] { return read_int(kind, key); })};
  }

  /// A file with a hole has strings that take no space on the disk, so their length is limited.
  std::string read_string() {
    std::string text = reader_.string(what_, kMaxGgufText - text_bytes_);
    text_bytes_ += text.size();
    return text;
  }

  double read_float(GgufKind kind) {
    const uint64_t bits = reader_.number(bytes_of(kind), what_);
    if (kind == GgufKind::kF64) return std::bit_cast<double>(bits);
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }

  int64_t read_int(GgufKind kind, const std::string& key) {
    const size_t bytes = bytes_of(kind);
    const uint64_t bits = reader_.number(bytes, what_);
    switch (kind) {
      case GgufKind::kBool:
        if (bits > 1) metadata_.fail(key, str("a boolean is ", bits, "; expected 0 or 1"));
        break;
      case GgufKind::kU64:
        if (bits > INT64_MAX) metadata_.fail(key, str(bits, " does not fit in 63 bits"));
        break;
      case GgufKind::kI8:
        return static_cast<int8_t>(bits);
      case GgufKind::kI16:
        return static_cast<int16_t>(bits);
      case GgufKind::kI32:
        return static_cast<int32_t>(bits);
      default:
        break;
    }
    return static_cast<int64_t>(bits);
  }

  Reader& reader_;
  GgufMetadata metadata_;
  std::string what_;
  uint64_t num_elements_ = 0, text_bytes_ = 0;
};

/// Reads name, shape, type and offset of a tensor; `begin` is the offset in the data.
GgufTensor read_tensor(Reader& reader, const std::string& source) {
  GgufTensor tensor;
  tensor.name = reader.string("the name of a tensor", kMaxTensorName);
  check_tensor_name(tensor.name, source);
  const std::string what = str(source, ": tensor '", tensor.name, "'");
  const std::string at = str("tensor '", tensor.name, "'");
  const uint64_t num_dims = reader.number(4, at);
  CLEAVE_CHECK(num_dims <= kMaxDims, Code::kFormat, what, " has ", num_dims,
               " dims; expected at most ", kMaxDims);
  for (uint64_t i = 0; i < num_dims; ++i) {
    const uint64_t size = reader.number(8, at);
    CLEAVE_CHECK(size <= INT64_MAX, Code::kFormat, what, ": size ", size,
                 " of a dim does not fit in 63 bits");
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(size));
  }
  const auto number = static_cast<uint32_t>(reader.number(4, at));
  const auto type = gguf_type(number);
  CLEAVE_CHECK(type, Code::kFormat, what, " is ", gguf_type_name(number),
               ", which is not read; expected F32, F16, BF16, Q4_0, Q8_0, Q4_K or Q6_K");
  tensor.type = *type;
  const GgufBlock block = block_of(*type);
  tensor.dtype = block.dtype;
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  CLEAVE_CHECK(row % block.elements == 0, Code::kFormat, what, " has rows of ", row, " elements; ",
               block.name, " needs multiples of ", block.elements);
  const uint64_t elements = num_elements(tensor.shape, what);
  (void)checked_mul(elements, 8, what);  // also the decoded bytes fit
  tensor.bytes = checked_mul(elements / static_cast<uint64_t>(block.elements),
                             static_cast<uint64_t>(block.bytes), what);
  tensor.begin = reader.number(8, at);
  return tensor;
}

/// Checks that the tensors follow each other up to the end of the file, and makes their offsets
/// relative to the file.
void check_places(std::vector<GgufTensor>& tensors, uint64_t data_begin, uint64_t alignment,
                  const File& file) {
  const uint64_t file_size = file.size();
  uint64_t next = 0;
  for (GgufTensor& tensor : tensors) {
    const std::string what = str(file.path(), ": tensor '", tensor.name, "'");
    CLEAVE_CHECK(tensor.begin == next, Code::kFormat, what, " begins at byte ", tensor.begin,
                 " of the data; expected ", next);
    tensor.begin = checked_add(data_begin, next, what);
    const uint64_t end = checked_add(tensor.begin, tensor.bytes, what);
    CLEAVE_CHECK(end <= file_size, Code::kFormat, what, " ends at byte ", end, "; the file has ",
                 file_size, " bytes, it is truncated");
    next = gguf_aligned(end - data_begin, alignment, what);
  }
  const uint64_t end = tensors.empty() ? data_begin : checked_add(data_begin, next, file.path());
  CLEAVE_CHECK(file_size <= end, Code::kFormat, file.path(), " has ", file_size,
               " bytes; its tensors end at byte ", end);
}

struct GgufPart {
  File file;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
};

/// Reads the header of one file.
GgufPart read_part(const fs::path& path) {
  GgufPart part;
  part.file = File::open_read(path);
  const std::string& source = part.file.path();
  Reader reader(part.file);
  const uint64_t magic = reader.number(4, "the header");
  CLEAVE_CHECK(magic == 0x46554747, Code::kFormat, source,
               " does not begin with 'GGUF'; it is not a GGUF file");
  const uint64_t version = reader.number(4, "the version");
  CLEAVE_CHECK(version == 2 || version == 3, Code::kFormat, source, " has version ", version,
               version >> 24 != 0 ? ", as if big-endian" : "",
               "; expected version 2 or 3, little-endian");
  const uint64_t num_tensors = reader.number(8, "the number of tensors");
  const uint64_t num_entries = reader.number(8, "the number of metadata entries");
  CLEAVE_CHECK(num_tensors <= kMaxGgufEntries && num_entries <= kMaxGgufEntries, Code::kFormat,
               source, " has ", num_tensors, " tensors and ", num_entries,
               " metadata entries; expected at most ", kMaxGgufEntries, " of each");
  part.metadata = MetadataReader(reader, source).read(num_entries);
  constexpr std::string_view kAlignment = "general.alignment";
  const int64_t alignment = part.metadata.int_or(kAlignment, kGgufAlignment);
  if (alignment < 1 || alignment > kMaxGgufAlignment || (alignment & (alignment - 1)) != 0) {
    part.metadata.fail(
        kAlignment, str("it is ", alignment, "; expected a power of 2 up to ", kMaxGgufAlignment));
  }
  for (uint64_t i = 0; i < num_tensors; ++i) {
    part.tensors.push_back(read_tensor(reader, source));
  }
  const auto step = static_cast<uint64_t>(alignment);
  check_places(part.tensors, gguf_aligned(reader.position(), step, source), step, part.file);
  return part;
}

}  // namespace

bool is_gguf(const fs::path& path) {
  std::error_code ignored;  // a file that cannot be accessed is no GGUF file
  return path.extension() == ".gguf" && fs::exists(path, ignored) &&
         !fs::is_directory(path, ignored);
}

uint64_t gguf_aligned(uint64_t offset, uint64_t alignment, const std::string& what) {
  return checked_add(offset, alignment - 1, what) / alignment * alignment;
}

Gguf Gguf::open(const fs::path& path) {
  GgufPart first = read_part(path);
  const std::vector<fs::path> paths = gguf_part_paths(first.metadata, path);
  Gguf gguf;
  gguf.metadata_ = std::move(first.metadata);
  gguf.add_part(std::move(first.file), std::move(first.tensors));
  for (size_t i = 1; i < paths.size(); ++i) {
    GgufPart part = read_part(paths[i]);
    check_gguf_part(part.metadata, i, paths.size());
    gguf.add_part(std::move(part.file), std::move(part.tensors));
  }
  constexpr std::string_view kCount = "split.tensors.count";
  if (paths.size() > 1 && gguf.metadata_.int_at(kCount) != std::ssize(gguf.tensors_)) {
    gguf.metadata_.fail(kCount, str("it is ", gguf.metadata_.int_at(kCount), "; the ", paths.size(),
                                    " parts have ", gguf.tensors_.size()));
  }
  return gguf;
}

void Gguf::add_part(File file, std::vector<GgufTensor> tensors) {
  CLEAVE_CHECK(tensors.size() <= kMaxGgufEntries - tensors_.size(), Code::kFormat, file.path(),
               ": with its tensors, the parts have ", tensors_.size() + tensors.size(),
               "; expected at most ", kMaxGgufEntries);
  for (GgufTensor& tensor : tensors) {
    tensor.part = files_.size();
    CLEAVE_CHECK(add(std::move(tensor)) == nullptr, Code::kFormat, file.path(), ": tensor '",
                 tensors_.back().name, "' is in the file twice");
  }
  files_.push_back(std::move(file));
}

std::vector<std::string> Gguf::file_names() const {
  std::vector<std::string> names;
  for (const File& file : files_) names.push_back(fs::path(file.path()).filename().string());
  return names;
}

void Gguf::read_block(std::string_view name, std::span<const Slice> slices,
                      std::span<std::byte> out) const {
  const GgufTensor& tensor = at(name);
  if (is_quantized(tensor.type)) return read_decoded(tensor, slices, out);
  const StoredElements elements = {tensor.begin, item_bytes(tensor.dtype), tensor.shape};
  read_elements(files_[tensor.part], elements, slices, out, str("tensor '", tensor.name, "'"));
}

std::optional<Int4Layout> Gguf::int4_layout(std::string_view name) const {
  const GgufTensor* tensor = find(name);
  const bool has_mins = tensor != nullptr && tensor->type == GgufType::kQ4_K;
  if (tensor == nullptr || tensor->shape.size() != 2) return std::nullopt;
  if (!has_mins && tensor->type != GgufType::kQ4_0) return std::nullopt;
  return Int4Layout{tensor->shape[0], tensor->shape[1] / kInt4GroupElements, has_mins};
}

void Gguf::read_int4(std::string_view name, const Int4Block& block, const Int4Memory& out) const {
  const GgufTensor& tensor = at(name);
  const Int4Layout layout = int4_layout(name).value();
  const GgufBlock stored = block_of(tensor.type);
  const auto bytes = static_cast<size_t>(stored.bytes);
  const auto per_block = static_cast<size_t>(stored.elements / kInt4GroupElements);
  std::vector<std::byte> row(static_cast<size_t>(layout.groups) / per_block * bytes);
  size_t done = 0;
  for (const Range& rows : block.rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      files_[tensor.part].read_at(tensor.begin + static_cast<uint64_t>(r) * row.size(), row);
      for (const Range& groups : block.groups) {
        for (auto g = static_cast<size_t>(groups.begin); g < static_cast<size_t>(groups.end); ++g) {
          const auto encoded = std::span(row).subspan(g / per_block * bytes, bytes);
          const Int4Group group = int4_group(tensor.type, encoded, g % per_block);
          std::memcpy(out.codes.data() + 16 * done, group.codes.data(), 16);
          std::memcpy(out.scales.data() + 2 * done, &group.scale, 2);
          if (layout.has_mins) std::memcpy(out.mins.data() + 2 * done, &group.min, 2);
          ++done;
        }
      }
    }
  }
}

/// Decodes the blocks that overlap each contiguous piece of the block to read.
void Gguf::read_decoded(const GgufTensor& tensor, std::span<const Slice> slices,
                        std::span<std::byte> out) const {
  const GgufBlock block = block_of(tensor.type);
  const auto elements = static_cast<uint64_t>(block.elements);
  const auto bytes = static_cast<uint64_t>(block.bytes);
  BlockWalk walk(tensor.shape, sizeof(float), slices);
  CLEAVE_CHECK(walk.bytes() == out.size(), Code::kUsage, "tensor '", tensor.name,
               "': the block has ", walk.bytes(), " bytes; the memory for it ", out.size());
  std::vector<std::byte> encoded;
  std::vector<float> decoded;
  while (const auto piece = walk.next()) {
    uint64_t from = piece->offset / sizeof(float);
    const uint64_t end = from + piece->bytes / sizeof(float);
    while (from < end) {
      const uint64_t first = from / elements;
      const uint64_t last = std::min((end - 1) / elements, first + kDecodedChunk / bytes) + 1;
      encoded.resize(static_cast<size_t>((last - first) * bytes));
      decoded.resize(static_cast<size_t>((last - first) * elements));
      files_[tensor.part].read_at(tensor.begin + first * bytes, encoded);
      dequantize(tensor.type, encoded, decoded);
      const uint64_t until = std::min(end, last * elements);
      const auto count = static_cast<size_t>((until - from) * sizeof(float));
      std::memcpy(out.data(), decoded.data() + (from - first * elements), count);
      out = out.subspan(count);
      from = until;
    }
  }
}

}  // namespace cleave::inline format
