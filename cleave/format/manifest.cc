// manifest.json is one line of JSON:
//   {"xxh3":"<hash of the text of the object that follows>","manifest":{
//     "format":"cleave-manifest","version":1,
//     "files":{"config.json":{"bytes":612,"xxh3":"<hash of the whole file>"},
//              "model.safetensors":{"bytes":90112,"head":1024,"xxh3":"<of the first 1024 bytes>"}},
//     "tensors":[{"file":"model.safetensors","name":"lm_head.weight","blocks":[
//       {"slices":[{"dim":0,"ranges":[[0,256]]}],"xxh3":"<of the block, row-major>"}, ...]}, ...]}}
// The blocks of a tensor cover it without holes and overlaps, so exactly one checksum covers every
// byte of the folder.
#include "cleave/format/manifest.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "cleave/base/hash.h"
#include "cleave/file/model_path.h"
#include "cleave/format/block.h"
#include "cleave/format/safetensors.h"
#include "cleave/text/json.h"

namespace cleave::inline format {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormatName = "cleave-manifest";
constexpr int64_t kVersion = 1;
constexpr std::string_view kBefore = "{\"xxh3\":\"";
constexpr std::string_view kBetween = "\",\"manifest\":";
constexpr std::string_view kAfter = "}\n";
// A manifest has at most half of max_bytes, and a value takes more than four bytes of text, so a
// valid manifest has fewer values than this.
constexpr JsonLimits kLimits{.max_values = size_t{1} << 25};
constexpr size_t kBufferBytes = size_t{256} << 10;  // fits in the L2 cache

struct ListedFile {
  uint64_t bytes = 0;
  std::optional<uint64_t> head;  // the checksum covers only this many first bytes
  uint64_t checksum = 0;
};

struct ListedTensor {
  std::string file, name;
  std::vector<WrittenBlock> blocks;
};

struct Manifest {
  std::map<std::string, ListedFile> files;
  std::vector<ListedTensor> tensors;
};

/// Counts the bytes that are read of a share.
ByteCount count_of(const Manifest& manifest, const VerifyShare& share) {
  ByteCount count(share.on_bytes);
  uint64_t of_tensors = 0;
  for (const auto& [name, file] : manifest.files) {
    if (file.head) of_tensors += file.bytes;
    if (!file.head && share.index == 0) count.expect(file.bytes);
  }
  count.expect(of_tensors / static_cast<uint64_t>(share.count));
  return count;
}

/// Hash of the first `bytes` of a file.
uint64_t hash_of(const File& file, uint64_t bytes, ByteCount* count = nullptr) {
  Hasher hasher;
  std::vector<std::byte> buffer(std::min<uint64_t>(kBufferBytes, bytes));
  for (uint64_t at = 0; at < bytes;) {
    const auto piece = std::span(buffer).first(std::min<uint64_t>(buffer.size(), bytes - at));
    file.read_at(at, piece);
    hasher.update(piece);
    at += piece.size();
    if (count != nullptr) count->add(piece.size());
  }
  return hasher.digest();
}

/// Opens FILE or FOLDER/FILE, e.g. "tp_rank_00_pp_rank_00/checkpoint.pt".
File open_listed(const fs::path& folder, std::string_view name) {
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return File::open_read_below(folder, name);
  const std::string_view inside = name.substr(0, slash);
  CLEAVE_CHECK(is_file_name(inside) && !fs::is_symlink(folder / inside), Code::kFormat,
               folder.string(), ": manifest names the file '", name,
               "'; expected FILE or FOLDER/FILE inside this folder, not a path or link");
  return File::open_read_below(folder / inside, name.substr(slash + 1));
}

/// Names of all files in the folder and in its direct subfolders.
std::vector<std::string> file_names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_directory() || entry.is_symlink()) {
      names.push_back(name);
      continue;
    }
    for (const auto& inside : fs::directory_iterator(entry.path())) {
      names.push_back(str(name, "/", inside.path().filename().string()));
    }
  }
  return names;
}

nlohmann::json to_json(const std::vector<Slice>& slices) {
  auto list = nlohmann::json::array();
  for (const Slice& slice : slices) {
    auto ranges = nlohmann::json::array();
    for (const Range& range : slice.ranges) ranges.push_back({range.begin, range.end});
    list.push_back({{"dim", slice.dim}, {"ranges", std::move(ranges)}});
  }
  return list;
}

uint64_t read_checksum(const Json& json) {
  const auto value = from_hex(json.as_string());
  if (!value) json.fail("expected 16 hexadecimal digits");
  return *value;
}

std::vector<Slice> read_slices(const Json& json) {
  std::vector<Slice> slices;
  for (size_t i = 0; i < json.size(); ++i) {
    Slice slice{json.at(i).at("dim").as_int(0, 63), {}};
    const Json ranges = json.at(i).at("ranges");
    for (size_t j = 0; j < ranges.size(); ++j) {
      const Json range = ranges.at(j);
      if (range.size() != 2) range.fail("expected [begin, end]");
      slice.ranges.push_back({range.at(size_t{0}).as_int(0), range.at(size_t{1}).as_int(0)});
    }
    slices.push_back(std::move(slice));
  }
  return slices;
}

ListedTensor read_tensor(const Json& json) {
  ListedTensor tensor{json.at("file").as_string(), json.at("name").as_string(), {}};
  const Json blocks = json.at("blocks");
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Json block = blocks.at(i);
    tensor.blocks.push_back({tensor.file, tensor.name, read_slices(block.at("slices")),
                             read_checksum(block.at("xxh3"))});
  }
  return tensor;
}

/// The text of the inner object, after checking its checksum.
std::string_view checked_body(std::string_view text, const std::string& source) {
  const size_t head = kBefore.size() + 16 + kBetween.size();
  const bool framed = text.size() > head + kAfter.size() && text.starts_with(kBefore) &&
                      text.substr(kBefore.size() + 16).starts_with(kBetween) &&
                      text.ends_with(kAfter);
  CLEAVE_CHECK(framed, Code::kFormat, source, " of ", text.size(),
               " bytes is damaged or was not written by cleave");
  const std::string_view body = text.substr(head, text.size() - head - kAfter.size());
  CLEAVE_CHECK(from_hex(text.substr(kBefore.size(), 16)) == hash_bytes(body), Code::kFormat, source,
               " is damaged: its checksum does not match its ", body.size(), " bytes");
  return body;
}

Manifest read_manifest(const fs::path& folder) {
  const fs::path path = folder / kManifestName;
  const std::string text = read_file(path, kLimits.max_bytes);
  const Json json = Json::parse(checked_body(text, path.string()), path.string(), kLimits);
  if (json.at("format").as_string() != kFormatName) json.at("format").fail("unknown format");
  if (json.at("version").as_int() != kVersion) {
    json.at("version").fail(str("this version of cleave reads version ", kVersion));
  }
  Manifest manifest;
  const Json files = json.at("files");
  for (size_t i = 0; i < files.size(); ++i) {
    const Json file = files.at(i);
    ListedFile& listed = manifest.files[files.key(i)];
    listed.bytes = static_cast<uint64_t>(file.at("bytes").as_int(0));
    listed.checksum = read_checksum(file.at("xxh3"));
    if (file.has("head")) {
      listed.head =
          static_cast<uint64_t>(file.at("head").as_int(0, static_cast<int64_t>(listed.bytes)));
    }
  }
  const Json tensors = json.at("tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    manifest.tensors.push_back(read_tensor(tensors.at(i)));
    const auto file = manifest.files.find(manifest.tensors.back().file);
    if (file == manifest.files.end() || !file->second.head) {
      tensors.at(i).at("file").fail("expected one of the files with tensors that are listed");
    }
  }
  return manifest;
}

/// A block of a tensor whose checksum is computed while the tensor's bytes are streamed.
struct BlockCheck {
  explicit BlockCheck(const StoredTensor& tensor, const WrittenBlock& block)
      : written(&block), walk(tensor.shape, item_bytes(tensor.dtype), block.slices) {
    next = walk.next();
  }
  const WrittenBlock* written;
  BlockWalk walk;
  std::optional<Piece> next;
  Hasher hasher;
};

/// Streams bytes of a file in ascending order through one buffer.
class Stream {
 public:
  Stream(const File& file, uint64_t begin, uint64_t end, ByteCount& count)
      : file_(file), at_(begin), end_(end), count_(count) {}

  void feed(Hasher& hasher, uint64_t bytes) {
    while (bytes > 0) {
      if (rest_.empty()) {
        buffer_.resize(std::min<uint64_t>(kBufferBytes, end_ - at_));
        file_.read_at(at_, buffer_);
        at_ += buffer_.size();
        rest_ = buffer_;
        count_.add(buffer_.size());
      }
      const auto piece = rest_.first(std::min<uint64_t>(rest_.size(), bytes));
      hasher.update(piece);
      rest_ = rest_.subspan(piece.size());
      bytes -= piece.size();
    }
  }

 private:
  const File& file_;
  uint64_t at_, end_;
  ByteCount& count_;
  std::vector<std::byte> buffer_;
  std::span<const std::byte> rest_;
};

std::string describe(const std::vector<Slice>& slices) {
  if (slices.empty()) return "its bytes";
  std::string text = "the bytes of";
  for (const Slice& slice : slices) {
    text += str(" dim ", slice.dim);
    for (const Range& range : slice.ranges) text += str(" [", range.begin, ", ", range.end, ")");
  }
  return text;
}

void check_tensor(const Safetensors& set, const StoredTensor& tensor, const ListedTensor& listed,
                  ByteCount& count, std::vector<std::string>& problems) {
  const TensorFile& file = set.files()[tensor.file];
  const std::string what = str(file.name, ": tensor '", tensor.name, "'");
  std::vector<BlockCheck> blocks;
  try {
    for (const WrittenBlock& block : listed.blocks) blocks.emplace_back(tensor, block);
  } catch (const Error& error) {
    problems.push_back(str(what, ": ", error.what()));
    return;
  }
  Stream stream(file.file, tensor.begin, tensor.end, count);
  for (uint64_t covered = 0; covered < tensor.end - tensor.begin;) {
    const auto owner = std::find_if(blocks.begin(), blocks.end(), [&](const BlockCheck& block) {
      return block.next && block.next->offset == covered;
    });
    if (owner == blocks.end()) {
      problems.push_back(str(what, ": no written range covers byte ", covered));
      return;
    }
    stream.feed(owner->hasher, owner->next->bytes);
    covered += owner->next->bytes;
    owner->next = owner->walk.next();
  }
  for (const BlockCheck& block : blocks) {
    if (block.next) problems.push_back(str(what, ": written ranges overlap"));
    if (block.hasher.digest() != block.written->checksum) {
      problems.push_back(str(what, ": ", describe(block.written->slices), " have changed"));
    }
  }
}

/// Checks the size, and the checksum of the whole file or of its header. Returns whether its
/// tensors can be read.
bool check_file(const fs::path& folder, const std::string& name, const ListedFile& listed,
                ByteCount& count, std::vector<std::string>& problems) {
  std::optional<File> opened;
  try {
    opened = open_listed(folder, name);
  } catch (const Error&) {
    if (fs::exists(fs::symlink_status(folder / name))) throw;
    problems.push_back(name + " is missing");
    return false;
  }
  const File& file = *opened;
  if (file.size() != listed.bytes) {
    problems.push_back(str(name, " has ", file.size(), " bytes; expected ", listed.bytes));
    return false;
  }
  if (hash_of(file, listed.head.value_or(listed.bytes), &count) == listed.checksum) return true;
  problems.push_back(name + (listed.head ? ": the header has changed" : " has changed"));
  return false;
}

void check_extra_files(const fs::path& folder, const Manifest& manifest,
                       std::vector<std::string>& problems) {
  const bool has_folders =  // of ranks
      std::any_of(manifest.files.begin(), manifest.files.end(), [](auto& file) {
        return file.first.find('/') != std::string::npos && !file.first.ends_with(".jinja");
      });
  for (const std::string& name : file_names(folder)) {
    const auto extension = fs::path(name).extension();
    if (!has_folders && name.find('/') != std::string::npos) continue;  // a folder of the user
    if (manifest.files.contains(name) || name == kManifestName) continue;
    if (extension == ".safetensors" || extension == ".bin" || extension == ".pt" ||
        name.ends_with(".index.json")) {
      problems.push_back(name + " is not in the manifest");
    }
  }
}

/// Selects the tensors whose middle is in the index-th part of all bytes.
class ShareFilter {
 public:
  ShareFilter(const Manifest& manifest, const VerifyShare& share)
      : index_(share.index), count_(share.count) {
    for (const auto& [name, file] : manifest.files) total_ += file.head ? file.bytes : 0;
  }
  bool takes(const StoredTensor& tensor) {
    const double middle =
        static_cast<double>(seen_) + static_cast<double>(tensor.end - tensor.begin) / 2;
    seen_ += tensor.end - tensor.begin;
    const double part = middle / static_cast<double>(std::max<uint64_t>(total_, 1));
    return std::min(static_cast<int>(part * count_), count_ - 1) == index_;
  }

 private:
  int index_, count_;
  uint64_t total_ = 0, seen_ = 0;
};

}  // namespace

std::string make_manifest(const fs::path& folder, const std::vector<WrittenBlock>& blocks) {
  std::map<std::pair<std::string, std::string>, nlohmann::json> tensors;
  std::set<std::string> tensor_files;
  for (const WrittenBlock& block : blocks) {
    tensor_files.insert(block.file);
    tensors[{block.file, block.tensor}].push_back(
        {{"slices", to_json(block.slices)}, {"xxh3", to_hex(block.checksum)}});
  }
  nlohmann::ordered_json body = {{"format", kFormatName}, {"version", kVersion}};
  auto& files = body["files"] = nlohmann::json::object();
  for (const std::string& name : file_names(folder)) {
    const File file = open_listed(folder, name);
    uint64_t covered = file.size();
    files[name]["bytes"] = covered;
    if (tensor_files.contains(name)) {
      covered = Safetensors::open(folder / name).files()[0].data_begin;
      files[name]["head"] = covered;
    }
    files[name]["xxh3"] = to_hex(hash_of(file, covered));
  }
  auto& list = body["tensors"] = nlohmann::json::array();
  for (auto& [key, written] : tensors) {
    list.push_back({{"file", key.first}, {"name", key.second}, {"blocks", std::move(written)}});
  }
  const std::string text = body.dump();
  CLEAVE_CHECK(text.size() < kLimits.max_bytes / 2, Code::kFormat, folder.string(),
               ": a manifest of ", blocks.size(), " blocks has ", text.size(),
               " bytes; expected fewer than ", kLimits.max_bytes / 2,
               ": shard the optimizer over fewer ranks");
  return str(kBefore, to_hex(hash_bytes(text)), kBetween, text, kAfter);
}

uint64_t manifest_max_bytes(const SafetensorsPlan& plan, uint64_t num_blocks) {
  // "slices" with a few ranges, and a checksum.
  constexpr uint64_t kBlock = 256;
  uint64_t bytes = plan.files().size() * kManifestBytesPerFile + num_blocks * kBlock;
  for (const StoredTensor& tensor : plan.tensors()) {
    bytes += 2 * tensor.name.size() + plan.files()[tensor.file].name.size() + 64;
  }
  return bytes;
}

std::vector<std::string> find_damage(const fs::path& folder, const VerifyShare& share) {
  const Manifest manifest = read_manifest(folder);
  std::vector<std::string> problems, others;  // others: reported by the share with index 0
  std::map<std::pair<std::string_view, std::string_view>, const ListedTensor*> listed;
  for (const ListedTensor& tensor : manifest.tensors) listed[{tensor.file, tensor.name}] = &tensor;
  auto& common = share.index == 0 ? problems : others;
  ShareFilter mine(manifest, share);
  ByteCount count = count_of(manifest, share);
  check_extra_files(folder, manifest, common);
  for (const auto& [name, file] : manifest.files) {
    if (!file.head && share.index != 0) continue;
    if (!check_file(folder, name, file, count, common) || !file.head) continue;
    const Safetensors set = Safetensors::open(folder / name);
    for (const StoredTensor& tensor : set.tensors()) {
      const auto at = listed.find({name, tensor.name});
      const bool is_listed = at != listed.end();
      if (!is_listed && tensor.begin != tensor.end) {
        common.push_back(str(name, ": tensor '", tensor.name, "' is not in the manifest"));
      }
      if (mine.takes(tensor) && is_listed) check_tensor(set, tensor, *at->second, count, problems);
    }
  }
  return problems;
}

/// Throws Error(kFormat) with the first of these problems, if there are any.
static void refuse(const std::vector<std::string>& problems, const fs::path& folder,
                   std::string_view remedy) {
  if (problems.empty()) return;
  constexpr size_t kShown = 4;
  std::string text = folder.string() + " is damaged: ";
  for (size_t i = 0; i < std::min(problems.size(), kShown); ++i) {
    text += (i == 0 ? "" : "; ") + problems[i];
  }
  if (problems.size() > kShown) text += str("; and ", problems.size() - kShown, " more");
  throw Error(Code::kFormat, str(text, "; ", remedy));
}

void require_intact(const fs::path& folder, const VerifyShare& share, std::string_view remedy) {
  std::vector<std::string> read;
  if (std::error_code unknown; fs::is_directory(folder, unknown)) read.push_back(folder.string());
  read_from(read, [&] { refuse(find_damage(folder, share), folder, remedy); });
}

}  // namespace cleave::inline format
