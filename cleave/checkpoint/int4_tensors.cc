#include "cleave/checkpoint/int4_tensors.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/checkpoint/parts.h"
#include "cleave/format/block.h"
#include "cleave/kernels/cpu/int4.h"
#include "cleave/kernels/cpu/int4_loops.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/inference_weight.h"

namespace cleave::inline checkpoint {
namespace {

constexpr std::string_view kCodes = ".int4", kTransposedCodes = ".int4_t";
constexpr std::string_view kScales = ".int4_scales", kMins = ".int4_mins";
constexpr int64_t kGroupBytes = kInt4Group / 2;
/// Elements that are rounded at a time.
constexpr int64_t kRoundedElements = int64_t{1} << 20;

std::string joined(std::string_view name, std::string_view ending) {
  return std::string(name) + std::string(ending);
}

/// The ending of a tensor that holds codes; empty for any other.
std::string_view codes_ending(std::string_view name) {
  for (const std::string_view ending : {kCodes, kTransposedCodes}) {
    if (name.size() > ending.size() && name.ends_with(ending)) return ending;
  }
  return {};
}

std::vector<Range> ranges_of(std::span<const Slice> slices, int64_t dim, int64_t size) {
  for (const Slice& slice : slices) {
    if (slice.dim == dim) return slice.ranges;
  }
  return {{0, size}};
}

int64_t size_of(const std::vector<Range>& ranges) {
  int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

/// The groups that overlap ranges of columns.
std::vector<Range> groups_of(const std::vector<Range>& columns) {
  std::vector<Range> groups;
  for (const Range& range : columns) {
    if (range.size() == 0) continue;
    const Range own = {range.begin / kInt4Group, (range.end - 1) / kInt4Group + 1};
    if (!groups.empty() && own.begin <= groups.back().end) {
      groups.back().end = own.end;
    } else {
      groups.push_back(own);
    }
  }
  return groups;
}

/// An empty matrix in 4 bits, with the memory that read_int4() fills.
Int4Rows memory_for(int64_t rows, int64_t groups, bool has_mins) {
  Int4Rows held{.codes = at::empty({rows, groups, kGroupBytes}, at::kByte),
                .scales = at::empty({rows, groups}, at::kHalf)};
  if (has_mins) held.mins = at::empty({rows, groups}, at::kHalf);
  return held;
}

void read_rows(const TensorSource& files, std::string_view name, const Int4Block& block,
               Int4Rows& rows) {
  const auto mins = rows.mins.defined() ? mutable_bytes_of(rows.mins) : std::span<std::byte>();
  files.read_int4(name, block,
                  {.codes = mutable_bytes_of(rows.codes),
                   .scales = mutable_bytes_of(rows.scales),
                   .mins = mins});
}

/// The elements of a matrix: [rows, groups * 32] fp32.
Tensor values_of(const Int4Rows& rows) {
  const Tensor low = rows.codes.bitwise_and(at::Scalar(15));
  const Tensor high = rows.codes.bitwise_right_shift(at::Scalar(4));
  const Tensor numbers = at::cat({low, high}, 2).to(at::kFloat);
  const Tensor scales = rows.scales.to(at::kFloat).unsqueeze(2);
  const Tensor values = rows.mins.defined()
                            ? numbers.mul(scales).sub_(rows.mins.to(at::kFloat).unsqueeze(2))
                            : numbers.sub(8).mul_(scales);
  return values.flatten(1);
}

}  // namespace

bool Int4Tensors::has_any(const TensorSource& files) {
  const std::vector<TensorInfo> list = files.list();
  return std::any_of(list.begin(), list.end(), [&](const TensorInfo& info) {
    const std::string_view ending = codes_ending(info.name);
    if (ending.empty()) return false;
    const std::string name = info.name.substr(0, info.name.size() - ending.size());
    return files.find(joined(name, kScales)) != nullptr;
  });
}

Int4Tensors::Int4Tensors(std::unique_ptr<TensorSource> files) : files_(std::move(files)) {
  std::set<std::string> parts;
  const std::vector<TensorInfo> stored = files_->list();
  for (const TensorInfo& info : stored) {
    const std::string_view ending = codes_ending(info.name);
    if (ending.empty()) continue;
    const std::string name = info.name.substr(0, info.name.size() - ending.size());
    parts.insert({info.name, joined(name, kScales), joined(name, kMins)});
    add_matrix(info, ending);
  }
  for (const TensorInfo& info : stored) {
    if (!parts.contains(info.name)) add_new(info);
  }
}

void Int4Tensors::add_new(TensorInfo info) {
  CLEAVE_CHECK(add(std::move(info)) == nullptr, Code::kFormat, path(), ": tensor '",
               tensors_.back().name, "' is in the file twice, in 4 bits and in another type");
}

void Int4Tensors::add_matrix(const TensorInfo& codes, std::string_view ending) {
  const std::string name = codes.name.substr(0, codes.name.size() - ending.size());
  CLEAVE_CHECK(
      codes.dtype == DType::kU8 && codes.shape.size() == 2 && codes.shape[1] % kGroupBytes == 0,
      Code::kFormat, path(), ": tensor '", codes.name, "' is ", file_name(codes.dtype),
      " of shape ", c10::IntArrayRef(codes.shape),
      "; 4-bit numbers need U8 of shape [out, in / 2] with `in` a multiple of 32");
  Matrix matrix{.layout = {.rows = codes.shape[0], .groups = codes.shape[1] / kGroupBytes},
                .is_transposed = ending == kTransposedCodes};
  matrix.layout.has_mins = files_->find(joined(name, kMins)) != nullptr;
  const std::vector<int64_t> wanted = {matrix.layout.rows, matrix.layout.groups};
  for (const std::string_view part : {kScales, kMins}) {
    if (part == kMins && !matrix.layout.has_mins) continue;
    const TensorInfo& numbers = files_->at(joined(name, part));
    CLEAVE_CHECK(numbers.dtype == DType::kF16 && numbers.shape == wanted, Code::kFormat, path(),
                 ": tensor '", numbers.name, "' is ", file_name(numbers.dtype), " of shape ",
                 c10::IntArrayRef(numbers.shape), "; expected F16 of shape ",
                 c10::IntArrayRef(wanted), ", the groups of ", codes.name);
  }
  std::vector<int64_t> shape = {matrix.layout.rows, matrix.layout.groups * kInt4Group};
  if (matrix.is_transposed) std::swap(shape[0], shape[1]);
  (void)num_elements(shape, str(path(), ": tensor '", name, "'"));
  add_new({name, DType::kF32, std::move(shape)});
  matrices_.emplace(name, matrix);
}

std::optional<Int4Layout> Int4Tensors::int4_layout(std::string_view name) const {
  const auto matrix = matrices_.find(std::string(name));
  if (matrix == matrices_.end()) return std::nullopt;
  return matrix->second.layout;
}

void Int4Tensors::read_int4(std::string_view name, const Int4Block& block,
                            const Int4Memory& out) const {
  const Matrix& matrix = matrices_.at(std::string(name));
  const auto read = [&](std::string_view part, int64_t width, std::span<std::byte> to) {
    std::vector<Range> columns;
    for (const Range& range : block.groups) {
      columns.push_back({range.begin * width, range.end * width});
    }
    const std::vector<Slice> slices = {{0, block.rows}, {1, std::move(columns)}};
    files_->read_block(joined(name, part), slices, to);
  };
  read(matrix.is_transposed ? kTransposedCodes : kCodes, kGroupBytes, out.codes);
  read(kScales, 1, out.scales);
  if (matrix.layout.has_mins) read(kMins, 1, out.mins);
}

void Int4Tensors::read_block(std::string_view name, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  const auto found = matrices_.find(std::string(name));
  if (found == matrices_.end()) return files_->read_block(at(name).name, slices, out);
  if (checked_block_bytes(at(name), slices, out) == 0) return;
  const Matrix& matrix = found->second;
  const int64_t row_dim = matrix.is_transposed ? 1 : 0;
  const auto row_ranges = ranges_of(slices, row_dim, matrix.layout.rows);
  const auto columns = ranges_of(slices, 1 - row_dim, matrix.layout.groups * kInt4Group);
  const Int4Block block = {row_ranges, groups_of(columns)};
  Int4Rows rows = memory_for(size_of(row_ranges), size_of(block.groups), matrix.layout.has_mins);
  read_rows(*this, name, block, rows);
  const Tensor values = values_of(rows);
  std::vector<Tensor> pieces;
  for (const Range& range : columns) {
    if (range.size() == 0) continue;
    int64_t before = 0;  // columns of earlier groups of the block
    for (const Range& groups : block.groups) {
      if (groups.end * kInt4Group <= range.begin) before += groups.size() * kInt4Group;
      if (range.begin < groups.begin * kInt4Group || range.end > groups.end * kInt4Group) continue;
      const int64_t first = before + range.begin - groups.begin * kInt4Group;
      pieces.push_back(values.narrow(1, first, range.size()));
    }
  }
  Tensor picked = at::cat(pieces, 1);
  if (matrix.is_transposed) picked = picked.t();
  const Tensor whole = picked.contiguous();
  std::memcpy(out.data(), whole.const_data_ptr(), out.size());
}

std::unordered_map<const Parameter*, Linear*> int4_layers(Layer& model) {
  std::unordered_map<const Parameter*, Linear*> layers;
  model.walk([&](Layer& layer) {
    auto* linear = dynamic_cast<Linear*>(&layer);
    if (linear != nullptr && linear->least_bits() == 4) layers[linear->weight().get()] = linear;
  });
  model.walk([&](Layer& layer) {
    if (auto* table = dynamic_cast<Embedding*>(&layer)) layers.erase(table->weight().get());
  });
  return layers;
}

Int4Source::Int4Source(const TensorSource& source, Model& model, bool has_mins)
    : source_(source), has_mins_(has_mins) {
  std::unordered_map<std::string, bool> transposed;  // by the names of matrices
  for (const auto& [weight, layer] : int4_layers(model)) {
    const int64_t in = weight->shape()[layer->is_transposed() ? 0 : 1];
    if (in % kInt4Group == 0) transposed.emplace(weight->name(), layer->is_transposed());
  }
  for (const TensorInfo& info : source.list()) {
    const auto matrix = transposed.find(info.name);
    if (matrix == transposed.end()) {
      add(info);
      continue;
    }
    const bool is_transposed = matrix->second;
    const int64_t out = info.shape[is_transposed ? 1 : 0], in = info.shape[is_transposed ? 0 : 1];
    const std::string codes = joined(info.name, is_transposed ? kTransposedCodes : kCodes);
    add({codes, DType::kU8, {out, in / 2}});
    add({joined(info.name, kScales), DType::kF16, {out, in / kInt4Group}});
    if (has_mins) add({joined(info.name, kMins), DType::kF16, {out, in / kInt4Group}});
    for (const std::string& name : {codes, joined(info.name, kScales), joined(info.name, kMins)}) {
      parts_.emplace(name, Part{info.name, is_transposed});
    }
  }
  CLEAVE_CHECK(!parts_.empty(), Code::kUsage, source.path(),
               " has no matrix that int4 applies to: a linear layer whose inputs are a multiple of "
               "32; choose another dtype");
}

void Int4Source::read_block(std::string_view name, std::span<const Slice> slices,
                            std::span<std::byte> out) const {
  const auto part = parts_.find(std::string(name));
  if (part == parts_.end()) return source_.read_block(name, slices, out);
  const TensorInfo& info = source_.at(part->second.matrix);
  const bool is_transposed = part->second.is_transposed;
  const int64_t in = info.shape[is_transposed ? 0 : 1];
  const int64_t step = std::max<int64_t>(1, kRoundedElements / in);
  for (const Slice& slice : slices) {
    CLEAVE_CHECK(slice.dim == 0, Code::kUsage, name, " is rounded by whole rows");
  }
  for (const Range& range : ranges_of(slices, 0, info.shape[is_transposed ? 1 : 0])) {
    for (int64_t first = range.begin; first < range.end; first += step) {
      const Range rows = {first, std::min(range.end, first + step)};
      const bool has_scales = name.ends_with(kScales), has_mins = name.ends_with(kMins);
      const Int4Rows rounded =
          rounded_once(info, is_transposed, rows, /*needs_codes=*/!has_scales && !has_mins);
      const Tensor wanted = (has_scales ? rounded.scales
                             : has_mins ? rounded.mins
                                        : rounded.codes)
                                .contiguous();
      CLEAVE_CHECK(wanted.nbytes() <= out.size(), Code::kUsage, name,
                   ": the block is larger than the memory for it");
      std::memcpy(out.data(), wanted.const_data_ptr(), wanted.nbytes());
      out = out.subspan(wanted.nbytes());
    }
  }
}

Int4Rows Int4Source::rounded_once(const TensorInfo& info, bool is_transposed, Range rows,
                                  bool needs_codes) const {
  if (!needs_codes) {
    const std::lock_guard lock(kept_mutex_);
    const auto is_known = [&] {
      const auto first = kept_.is_known.begin() + rows.begin;
      return std::all_of(first, first + rows.size(), std::identity());
    };
    if (kept_.matrix == info.name && is_known()) {
      const auto own = [&](const Tensor& t) {
        return t.defined() ? t.narrow(0, rows.begin, rows.size()) : t;
      };
      return {.codes = {}, .scales = own(kept_.scales), .mins = own(kept_.mins)};
    }
  }
  Int4Rows rounded = rounded_rows(info, is_transposed, rows);
  const std::lock_guard lock(kept_mutex_);
  if (kept_.matrix != info.name) {
    const int64_t out = info.shape[is_transposed ? 1 : 0];
    const auto like = [out](const Tensor& t) {
      return t.defined() ? at::empty({out, t.size(1)}, t.options()) : t;
    };
    kept_ = {info.name, like(rounded.scales), like(rounded.mins),
             std::vector<bool>(static_cast<size_t>(out))};
  }
  kept_.scales.narrow(0, rows.begin, rows.size()).copy_(rounded.scales);
  if (has_mins_) kept_.mins.narrow(0, rows.begin, rows.size()).copy_(rounded.mins);
  std::fill_n(kept_.is_known.begin() + rows.begin, rows.size(), true);
  return rounded;
}

Int4Rows Int4Source::rounded_rows(const TensorInfo& info, bool is_transposed, Range rows) const {
  const int64_t in = info.shape[is_transposed ? 0 : 1];
  const std::vector<int64_t> shape =
      is_transposed ? std::vector<int64_t>{in, rows.size()} : std::vector<int64_t>{rows.size(), in};
  const std::vector<Slice> slices = {{is_transposed ? 1 : 0, {rows}}};
  Tensor values = at::empty(shape, scalar_type(info.dtype));
  source_.read_block(info.name, slices, mutable_bytes_of(values));
  const Tensor groups = in_groups(is_transposed ? values.t() : values, int4_parts({{0, in}}));
  const Int4Bounds bounds = int4_bounds(groups);
  check_weight_finite(bounds.high, info.name, "int4");
  check_weight_finite(bounds.low, info.name, "int4");
  return to_int4(groups, bounds, has_mins_, info.name);
}

/// Adds the groups that the parts are in to `groups`, each once. Returns the place of each part's
/// group among them.
static std::vector<int64_t> places_in(std::vector<Range>& groups,
                                      const std::vector<Int4Part>& parts) {
  std::vector<int64_t> places;
  places.reserve(parts.size());
  int64_t num_groups = 0;
  for (const Int4Part& part : parts) {
    const bool is_new = groups.empty() || groups.back().end <= part.index;
    if (is_new && !groups.empty() && groups.back().end == part.index) {
      ++groups.back().end;
    } else if (is_new) {
      groups.push_back({part.index, part.index + 1});
    }
    if (is_new) ++num_groups;
    places.push_back(num_groups - 1);
  }
  return places;
}

bool load_int4(Linear& layer, const TensorSource& files) {
  const Parameter& weight = *layer.weight();
  const auto layout = files.int4_layout(weight.name());
  const size_t out_dim = layer.is_transposed() ? 1 : 0;
  const std::vector<int64_t>& shape = weight.shape();
  if (!layout || layer.least_bits() != 4 || layout->rows != shape[out_dim] ||
      layout->groups * kInt4Group != shape[1 - out_dim]) {
    return false;
  }
  Int4Block block;
  block.rows = layer.is_column_split() ? weight.ranges() : std::vector<Range>{{0, layout->rows}};
  const std::vector<int64_t> places = places_in(block.groups, int4_parts_of(layer));
  const int64_t num_groups = places.empty() ? 0 : places.back() + 1;
  Int4Rows rows = memory_for(size_of(block.rows), num_groups, layout->has_mins);
  if (rows.codes.numel() > 0) read_rows(files, weight.name(), block, rows);
  if (static_cast<int64_t>(places.size()) > num_groups) {  // two ranges share a group
    const Tensor index = at::tensor(places, at::kLong);
    for (Tensor* part : {&rows.codes, &rows.scales, &rows.mins}) {
      if (part->defined()) *part = part->index_select(1, index);
    }
  }
  const bool is_finite = rows.scales.isfinite().all().item<bool>() &&
                         (!layout->has_mins || rows.mins.isfinite().all().item<bool>());
  CLEAVE_CHECK(is_finite, Code::kFormat, files.path(), ": tensor '", weight.name(),
               "' has a scale or minimum that is NaN or infinite; the file is damaged");
  set_int4(layer, rows);
  return true;
}

}  // namespace cleave::inline checkpoint
