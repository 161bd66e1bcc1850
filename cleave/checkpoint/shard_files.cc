#include "cleave/checkpoint/shard_files.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <utility>

#include "cleave/checkpoint/joined_tensors.h"
#include "cleave/layout/shard_geometry.h"
#include "cleave/mesh/dry_axis.h"
#include "cleave/parallel/plan.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxRanks = 65536;

/// A rank's place in the job.
using RankPair = std::pair<int, int>;  // tp, pp

/// Removes `word` and the number after it from the front of `text`.
std::optional<int> take_number(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return std::nullopt;
  text.remove_prefix(word.size());
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || number >= kMaxRanks) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<RankPair> oslo_ranks(std::string_view name) {
  const auto tp = take_number(name, "pytorch_model_tp_");
  const auto pp = take_number(name, "_pp_");
  if (!tp || !pp || (name != ".bin" && name != "_ep_0.bin")) return std::nullopt;
  return RankPair{*tp, *pp};
}

std::optional<RankPair> nxd_ranks(std::string_view name) {
  const auto tp = take_number(name, "tp_rank_");
  const auto pp = take_number(name, "_pp_rank_");
  if (!tp || !pp || (!name.empty() && name != "_dp_rank_00")) return std::nullopt;
  return RankPair{*tp, *pp};
}

/// The files of all tp x pp ranks, in order; Error(kIo) if some are missing.
ShardFiles complete(const std::map<RankPair, std::string>& found, const fs::path& folder) {
  ShardFiles files;
  files.folder = folder.string();
  for (const auto& [ranks, path] : found) {
    files.tp = std::max(files.tp, ranks.first + 1);
    files.pp = std::max(files.pp, ranks.second + 1);
  }
  std::string missing;
  // Do not trust the numbers in names: stop when enough ranks are missing.
  for (int pp = 0; pp < files.pp && missing.size() < 200; ++pp) {
    for (int tp = 0; tp < files.tp && missing.size() < 200; ++tp) {
      const auto at = found.find({tp, pp});
      if (at != found.end()) {
        files.paths.push_back(at->second);
      } else {
        missing += str(missing.empty() ? "" : ", ", "(", tp, ", ", pp, ")");
      }
    }
  }
  CLEAVE_CHECK(missing.empty(), Code::kIo, folder.string(), " has the files of ", found.size(),
               " ranks of a job of tp=", files.tp, " x pp=", files.pp,
               "; missing are those of (tp, pp) = ", missing);
  return files;
}

std::string two_digits(int rank) {
  return rank < 10 ? str(0, rank) : str(rank);
}

std::string shapes_text(const std::vector<std::vector<int64_t>>& shapes) {
  std::string text;
  for (const auto& shape : shapes) {
    text += cleave::str(text.empty() ? "" : ", ", c10::IntArrayRef(shape));
  }
  return text;
}

/// The dim along which the shapes add up to the whole shape; all other dims must be equal to it.
std::optional<size_t> added_dim(const std::vector<std::vector<int64_t>>& shapes,
                                const std::vector<int64_t>& whole) {
  std::optional<size_t> sharded;
  for (size_t dim = 0; dim < whole.size(); ++dim) {
    int64_t sum = 0;
    bool is_whole = true;
    for (const auto& shape : shapes) {
      if (shape.size() != whole.size()) return std::nullopt;
      is_whole = is_whole && shape[dim] == whole[dim];
      sum += shape[dim];
    }
    if (is_whole) continue;
    if (sharded || sum != whole[dim]) return std::nullopt;
    sharded = dim;
  }
  return sharded;
}

/// The whole shape of a tensor that the model does not have (a head tied to the embedding): where
/// sizes differ, their sum over ranks.
std::vector<int64_t> joined_shape(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<int64_t> whole = shapes[0];
  for (size_t dim = 0; dim < whole.size(); ++dim) {
    int64_t sum = 0;
    bool differs = false;
    for (const auto& shape : shapes) {
      if (shape.size() != whole.size()) return whole;
      differs = differs || shape[dim] != shapes[0][dim];
      sum += shape[dim];
    }
    if (differs) whole[dim] = sum;
  }
  return whole;
}

}  // namespace

/// How the model's own plan shards each tensor over tp ranks.
struct ShardedTensors::PlannedShards {
  struct Planned {
    std::vector<int64_t> whole;
    int64_t dim = 0;
    std::vector<std::vector<int64_t>> local_shapes;
    std::vector<std::vector<Range>> ranges, owned;
  };
  std::map<std::string, Planned, std::less<>> by_name;

  PlannedShards(const Json& config, int tp) {
    for (int rank = 0; rank < tp; ++rank) {
      const auto model = make_model(config);
      parallelize_module(*model, dry_axis("tp", rank, tp), model->plan());
      for (const auto& parameter : model->parameters()) {
        add(parameter->name(), *parameter);
        for (const std::string& name : model->other_names(parameter->name())) {
          add(name, *parameter);
        }
      }
    }
  }

  void add(const std::string& name, const Parameter& parameter) {
    Planned& planned = by_name[name];
    planned.whole = parameter.shape();
    planned.dim = parameter.split_dim();
    planned.local_shapes.push_back(parameter.local_shape());
    planned.ranges.push_back(parameter.ranges());
    planned.owned.push_back(parameter.owned());
  }
};

struct ShardedTensors::Shard {
  size_t file = 0;
  SavedTensor tensor;
};

std::string oslo_file_name(int tp_rank, int pp_rank) {
  return str("pytorch_model_tp_", tp_rank, "_pp_", pp_rank, ".bin");
}

std::string nxd_folder_name(int tp_rank, int pp_rank) {
  return str("tp_rank_", two_digits(tp_rank), "_pp_rank_", two_digits(pp_rank));
}

std::optional<ShardFiles> find_shard_files(const fs::path& folder) {
  std::map<RankPair, std::string> oslo, nxd;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto oslo_rank = oslo_ranks(name), nxd_rank = nxd_ranks(name);
    if (!oslo_rank && !nxd_rank) continue;
    const std::string path = nxd_rank ? str(name, "/", kNxdFileName) : name;
    const auto [at, added] =
        (nxd_rank ? nxd : oslo).emplace(nxd_rank ? *nxd_rank : *oslo_rank, path);
    CLEAVE_CHECK(added, Code::kFormat, folder.string(), " has both ", at->second, " and ", path,
                 ", of the same rank; remove one of them");
  }
  CLEAVE_CHECK(oslo.empty() || nxd.empty(), Code::kFormat, folder.string(), " has both ",
               oslo.begin()->second, " and ", nxd.begin()->second,
               "; expected the files of one job");
  if (oslo.empty() && nxd.empty()) return std::nullopt;
  ShardFiles files = complete(oslo.empty() ? nxd : oslo, folder);
  files.has_model_key = oslo.empty();
  return files;
}

ShardedTensors::ShardedTensors(const ShardFiles& files, const Json& config) : files_(files) {
  const PlannedShards planned(config, files.tp);
  for (const std::string& path : files.paths) {
    const size_t slash = path.find('/');
    const fs::path folder = slash == std::string::npos
                                ? fs::path(files.folder)
                                : fs::path(files.folder) / path.substr(0, slash);
    open_.emplace_back(File::open_read_below(folder, fs::path(path).filename().string()));
  }
  for (int pp = 0; pp < files.pp; ++pp) add_stage(pp, planned);
}

void ShardedTensors::add_stage(int pp, const PlannedShards& planned) {
  // The order is that of the first rank's file; the others must have the same names.
  std::vector<std::string> order;
  std::map<std::string, std::vector<Shard>> shards;
  const auto num_tp = static_cast<size_t>(files_.tp);
  for (size_t tp = 0; tp < num_tp; ++tp) {
    const size_t index = static_cast<size_t>(pp) * num_tp + tp;
    const SavedValue& saved = open_[index].value();
    const SavedValue* inner = files_.has_model_key ? saved.find("model") : nullptr;
    const SavedValue& dict = inner != nullptr ? *inner : saved;
    for (auto& [name, tensor] : state_dict_tensors(dict, open_[index].path())) {
      if (tp == 0) order.push_back(name);
      shards[name].push_back({index, std::move(tensor)});
    }
  }
  for (const auto& [name, list] : shards) {
    CLEAVE_CHECK(list.size() == num_tp, Code::kFormat, files_.folder, ": tensor '", name,
                 "' is in ", list.size(), " of the ", num_tp, " files of stage ", pp);
  }
  for (const std::string& name : order) {
    if (find(name) == nullptr) add(joined(name, shards.at(name), planned));
  }
}

JoinedTensor ShardedTensors::joined(const std::string& name, const std::vector<Shard>& shards,
                                    const PlannedShards& planned) const {
  std::vector<std::vector<int64_t>> shapes;
  for (const Shard& shard : shards) {
    shapes.push_back(shard.tensor.shape);
    CLEAVE_CHECK(shard.tensor.dtype == shards[0].tensor.dtype, Code::kFormat, files_.folder,
                 ": tensor '", name, "' is ", cleave::name(shards[0].tensor.dtype), " in ",
                 files_.paths[shards[0].file], " and ", cleave::name(shard.tensor.dtype), " in ",
                 files_.paths[shard.file]);
  }
  const auto found = planned.by_name.find(name);
  const bool is_known = found != planned.by_name.end();
  const std::vector<int64_t> whole = is_known ? found->second.whole : joined_shape(shapes);
  JoinedTensor tensor{{name, shards[0].tensor.dtype, whole}};
  const bool is_copy =
      std::all_of(shapes.begin(), shapes.end(), [&](const auto& shape) { return shape == whole; });
  if (is_copy) {
    tensor.parts = {{shards[0].file, shards[0].tensor, {0, whole.empty() ? 1 : whole[0]}, 0}};
    return tensor;
  }
  const auto add_part = [&](size_t rank, const Range& range, int64_t local_begin) {
    if (range.size() <= 0) return;
    tensor.parts.push_back({shards[rank].file, shards[rank].tensor, range, local_begin});
  };
  if (is_known && shapes == found->second.local_shapes) {
    const PlannedShards::Planned& known = found->second;
    tensor.dim = known.dim;
    for (size_t rank = 0; rank < shards.size(); ++rank) {
      for (const auto& [range, local] : pieces_of(known.ranges[rank], known.owned[rank])) {
        add_part(rank, range, local);
      }
    }
    return tensor;
  }
  const auto dim = added_dim(shapes, whole);
  CLEAVE_CHECK(dim, Code::kFormat, files_.folder, ": tensor '", name, "' has the shapes ",
               shapes_text(shapes), " in the files of its ranks; they do not add up to ",
               c10::IntArrayRef(whole), ", as config.json says");
  tensor.dim = static_cast<int64_t>(*dim);
  int64_t at = 0;
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    const int64_t width = shapes[rank][*dim];
    add_part(rank, {at, at + width}, 0);
    at += width;
  }
  return tensor;
}

/// The elements of a dim of `size` that the slices have.
static int64_t width_in(std::span<const Slice> slices, size_t dim, int64_t size) {
  for (const Slice& slice : slices) {
    if (static_cast<size_t>(slice.dim) != dim) continue;
    size = 0;
    for (const Range& range : slice.ranges) size += range.size();
  }
  return size;
}

void ShardedTensors::read_block(std::string_view name, std::span<const Slice> slices,
                                std::span<std::byte> out) const {
  const JoinedTensor& tensor = at(name);
  const uint64_t bytes = checked_block_bytes(tensor, slices, out);
  if (tensor.shape.empty())
    return open_[tensor.parts[0].file].read_block(tensor.parts[0].tensor, slices, out);
  // The block as [outer, width, inner] around the sharded dim.
  const auto sharded = static_cast<size_t>(tensor.dim);
  std::vector<Slice> local(slices.begin(), slices.end());
  auto own = std::find_if(local.begin(), local.end(),
                          [&](const Slice& slice) { return slice.dim == tensor.dim; });
  if (own == local.end()) {
    own = local.insert(own, {tensor.dim, {{0, tensor.shape[sharded]}}});
  }
  const std::vector<Range> wanted = own->ranges;
  size_t width = 0, inner = static_cast<size_t>(item_bytes(tensor.dtype));
  for (const Range& range : wanted) width += static_cast<size_t>(range.size());
  for (size_t dim = sharded + 1; dim < tensor.shape.size(); ++dim) {
    inner *= static_cast<size_t>(width_in(local, dim, tensor.shape[dim]));
  }
  if (bytes == 0) return;
  const size_t outer = out.size() / (width * inner);
  std::vector<std::byte> piece;
  for (const JoinedTensor::Part& part : tensor.parts) {
    size_t place = 0;
    for (const Range& range : wanted) {
      const Range both = {std::max(range.begin, part.whole.begin),
                          std::min(range.end, part.whole.end)};
      if (both.size() > 0) {
        const int64_t begin = part.local_begin + both.begin - part.whole.begin;
        own->ranges = {{begin, begin + both.size()}};
        const size_t run = static_cast<size_t>(both.size()) * inner;
        piece.resize(outer * run);
        open_[part.file].read_block(part.tensor, local, piece);
        const size_t first = place + static_cast<size_t>(both.begin - range.begin);
        for (size_t i = 0; i < outer; ++i) {
          std::memcpy(out.data() + (i * width + first) * inner, piece.data() + i * run, run);
        }
      }
      place += static_cast<size_t>(range.size());
    }
  }
}

}  // namespace cleave::inline checkpoint

void cleave_joined_tensors(const std::string& folder, std::vector<cleave::TensorInfo>& tensors,
                           std::vector<std::string>& files) {
  using namespace cleave;  // NOLINT(google-build-using-namespace)
  const auto found = find_shard_files(folder);
  if (!found) return;
  const ShardedTensors joined(*found, Json::parse_file(folder + "/config.json", kConfigLimits));
  tensors = joined.list();
  files = joined.file_names();
}
