#include "cleave/checkpoint/diff.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <malloc.h>
#include <memory>

#include <ATen/ATen.h>

#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/tensor_source.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

/// The tensors of one side.
struct Sources {
  std::unique_ptr<TensorSource> weights, optimizer;  ///< optimizer: null if there is no state
};

Sources open_side(const std::string& given) {
  const std::string path = local_model(given).string();
  Sources sources;
  if (!fs::is_directory(path) && !is_gguf(path)) {
    sources.weights = open_tensors(path);
    return sources;
  }
  const ModelFolder folder = ModelFolder::open(path);
  sources.weights = open_whole_tensors(folder);
  if (has_safetensors(folder.path, kOptimizerStem)) {
    sources.optimizer = open_tensors(folder.path, kOptimizerStem);
  }
  return sources;
}

/// The elements of a chunk, flattened.
Tensor elements_of(std::vector<std::byte>& bytes, DType dtype) {
  const int64_t count = static_cast<int64_t>(bytes.size()) / item_bytes(dtype);
  return at::from_blob(bytes.data(), {count}, at::dtype(scalar_type(dtype)));
}

/// Which elements are equal; two NaNs are. Integers of one type are compared as integers: a double
/// cannot hold all of them.
Tensor same_numbers(const Tensor& a, const Tensor& b) {
  const bool is_integer = a.scalar_type() == b.scalar_type() && !a.is_floating_point();
  if (is_integer) return a.eq(b);
  const Tensor wide_a = a.to(at::kDouble), wide_b = b.to(at::kDouble);
  return wide_a.eq(wide_b).logical_or(wide_a.isnan().logical_and(wide_b.isnan()));
}

/// Indices of the `element`-th element of a block.
std::vector<int64_t> place_of(const TensorInfo& tensor, const std::vector<Slice>& slices,
                              int64_t element) {
  std::vector<int64_t> place(tensor.shape.size());
  for (size_t dim = place.size(); dim-- > 0;) {
    int64_t first = 0, size = tensor.shape[dim];
    for (const Slice& slice : slices) {
      if (static_cast<size_t>(slice.dim) != dim) continue;
      first = slice.ranges.front().begin;  // a piece of a whole tensor is one range
      size = slice.ranges.front().size();
    }
    place[dim] = first + element % size;
    element /= size;
  }
  return place;
}

/// Adds the differences of one chunk to those of its tensor.
void compare_values(const Tensor& stored_a, const Tensor& stored_b, TensorDifference& found,
                    const std::function<std::vector<int64_t>(int64_t)>& place) {
  const Tensor same = same_numbers(stored_a, stored_b);
  const int64_t num_different = same.numel() - same.sum().item<int64_t>();
  if (num_different == 0) return;
  found.num_different += static_cast<uint64_t>(num_different);
  const Tensor a = stored_a.to(at::kDouble), b = stored_b.to(at::kDouble);
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  const Tensor absolute = a.sub(b).abs().nan_to_num(kInfinite, kInfinite).masked_fill(same, 0);
  const Tensor relative =
      absolute.div(at::maximum(a.abs(), b.abs())).nan_to_num(kInfinite, kInfinite);
  found.max_relative =
      std::max(found.max_relative, relative.masked_fill(same, 0).max().item<double>());
  const int64_t at = absolute.argmax().item<int64_t>();
  const double largest = absolute[at].item<double>();
  if (largest <= found.max_absolute && !found.where.empty()) return;
  found.max_absolute = largest;
  found.where = place(at);
}

/// Expects the bytes of the tensors that both sides have, of the first side.
void expect(const TensorSource& a, const TensorSource& b, ByteCount& count) {
  for (const TensorInfo& info : a.list()) {
    const TensorInfo* other = b.find(info.name);
    if (other != nullptr && other->shape == info.shape) count.expect(block_bytes(info, {}));
  }
}

void compare_tensor(const TensorSource& a, const TensorSource& b, const std::string& name,
                    ByteCount& count, TensorDifference& found) {
  const TensorInfo &in_a = a.at(name), &in_b = b.at(name);
  found.dtype_a = file_name(in_a.dtype);
  found.dtype_b = file_name(in_b.dtype);
  found.shape_a = in_a.shape;
  found.shape_b = in_b.shape;
  if (in_a.shape != in_b.shape) return;
  // The wider type decides the pieces.
  const bool a_is_wider = item_bytes(in_a.dtype) >= item_bytes(in_b.dtype);
  std::vector<std::byte> bytes_a, bytes_b;
  for_each_chunk(a_is_wider ? in_a : in_b, {}, [&](const std::vector<Slice>& slices) {
    bytes_a.resize(block_bytes(in_a, slices));
    bytes_b.resize(block_bytes(in_b, slices));
    a.read_block(name, slices, bytes_a);
    b.read_block(name, slices, bytes_b);
    count.add(bytes_a.size());
    if (in_a.dtype == in_b.dtype && bytes_a == bytes_b) return;
    compare_values(elements_of(bytes_a, in_a.dtype), elements_of(bytes_b, in_b.dtype), found,
                   [&](int64_t element) { return place_of(in_a, slices, element); });
  });
}

/// Tensors that only one side has.
void add_unmatched(const TensorSource& from, const TensorSource& other, const std::string& prefix,
                   bool is_a, DiffReport& report) {
  for (const TensorInfo& info : from.list()) {
    if (other.find(info.name) != nullptr) continue;
    TensorDifference found;
    found.name = prefix + info.name;
    (is_a ? found.in_b : found.in_a) = false;
    (is_a ? found.dtype_a : found.dtype_b) = file_name(info.dtype);
    (is_a ? found.shape_a : found.shape_b) = info.shape;
    report.differences.push_back(std::move(found));
  }
}

void compare_sources(const TensorSource& a, const TensorSource& b, const std::string& prefix,
                     ByteCount& count, DiffReport& report) {
  add_unmatched(a, b, prefix, true, report);
  add_unmatched(b, a, prefix, false, report);
  for (const TensorInfo& info : a.list()) {
    if (b.find(info.name) == nullptr) continue;
    ++report.num_tensors;
    TensorDifference found;
    found.name = prefix + info.name;
    compare_tensor(a, b, info.name, count, found);
    const bool is_equal = found.num_different == 0 && found.dtype_a == found.dtype_b &&
                          found.shape_a == found.shape_b;
    if (!is_equal) report.differences.push_back(std::move(found));
  }
}

}  // namespace

DiffReport diff(const std::string& a, const std::string& b, const OnBytes& on_bytes) {
  const Sources in_a = open_side(a), in_b = open_side(b);
  const bool have_state = in_a.optimizer && in_b.optimizer;
  ByteCount bytes(on_bytes);
  expect(*in_a.weights, *in_b.weights, bytes);
  if (have_state) expect(*in_a.optimizer, *in_b.optimizer, bytes);
  DiffReport report;
  compare_sources(*in_a.weights, *in_b.weights, "", bytes, report);
  if (have_state) {
    compare_sources(*in_a.optimizer, *in_b.optimizer, "optimizer.", bytes, report);
    return report;
  }
  const auto count = [](const std::unique_ptr<TensorSource>& state) {
    return state ? static_cast<int64_t>(state->list().size()) : 0;
  };
  report.num_only_in_a = count(in_a.optimizer);
  report.num_only_in_b = count(in_b.optimizer);
  return report;
}

}  // namespace cleave::inline checkpoint

void cleave_diff(const std::string& a, const std::string& b, cleave::DiffReport& report) {
  // Large blocks are mapped from the system, so that they do not fragment the heap.
  (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
  report = cleave::diff(a, b, cleave::terminal_progress("compared MiB"));
}
