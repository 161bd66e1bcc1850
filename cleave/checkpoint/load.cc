#include "cleave/checkpoint/load.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/ATen.h>

#include "cleave/format/safetensors.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave {
namespace {

/// This rank's part of a stored tensor, of the stored type.
Tensor read_part(const Safetensors& files, const StoredTensor& stored, const Parameter& p) {
  Tensor part = at::empty(p.local_shape(), at::dtype(scalar_type(stored.dtype)));
  const std::span<std::byte> bytes{static_cast<std::byte*>(part.mutable_data_ptr()), part.nbytes()};
  std::vector<Slice> slices;
  if (p.is_split()) slices.push_back({.dim = p.split_dim(), .ranges = p.ranges()});
  files.read_block(stored, slices, bytes);
  return part;
}

/// Rows of whole heads from Meta's order, in which the two dims of a rotary pair are neighbours, to
/// half a head apart.
Tensor half_apart(const Tensor& rows, int64_t head_dim) {
  auto shape = rows.sizes().vec();
  shape.erase(shape.begin());
  std::vector<int64_t> pairs{rows.size(0) / head_dim, head_dim / 2, 2};
  pairs.insert(pairs.end(), shape.begin(), shape.end());
  return rows.view(pairs).transpose(1, 2).reshape(rows.sizes());
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 5;
  std::string out;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    out += (i == 0 ? "'" : ", '") + names[i] + "'";
  if (names.size() > kShown) out += str(" and ", names.size() - kShown, " more");
  return out;
}

/// Buffers that old files carry although they are computed, not learned.
bool is_computed(const std::string& name) {
  return name.ends_with("rotary_emb.inv_freq") || name == "rope.freqs";
}

void check_names(const Safetensors& files, const std::vector<std::string>& wanted,
                 const std::string& path) {
  std::set<std::string> left;
  for (const StoredTensor& t : files.tensors()) {
    if (!is_computed(t.name)) left.insert(t.name);
  }
  std::vector<std::string> missing;
  for (const std::string& name : wanted) {
    if (left.erase(name) == 0) missing.push_back(name);
  }
  CLEAVE_CHECK(missing.empty(), Code::kFormat, path, " lacks ", missing.size(),
               " tensors of the model: ", listed(missing),
               "; does config.json belong to these weights?");
  const std::vector<std::string> extra(left.begin(), left.end());
  CLEAVE_CHECK(extra.empty(), Code::kFormat, path, " has ", extra.size(),
               " tensors that the model has no place for: ", listed(extra),
               "; does config.json belong to these weights?");
}

}  // namespace

void load_weights(Layer& model, const ModelFolder& folder, at::ScalarType dtype) {
  const auto files = Safetensors::open(folder.path, folder.stem);
  const auto parameters = model.parameters();
  std::vector<std::string> wanted;
  for (const auto& p : parameters) wanted.push_back(folder.stored_as(p->name()).name);
  // A tied matrix may be stored under both of its names; the second is the first again.
  if (files.find("lm_head.weight") != nullptr &&
      std::find(wanted.begin(), wanted.end(), "lm_head.weight") == wanted.end() &&
      folder.config.bool_or("tie_word_embeddings", false)) {
    wanted.emplace_back("lm_head.weight");
  }
  check_names(files, wanted, folder.path);
  for (size_t i = 0; i < parameters.size(); ++i) {
    Parameter& p = *parameters[i];
    const StoredAs where = folder.stored_as(p.name());
    const StoredTensor& stored = files.at(where.name);
    CLEAVE_CHECK(
        std::equal(stored.shape.begin(), stored.shape.end(), p.shape().begin(), p.shape().end()),
        Code::kFormat, folder.path, ": tensor '", where.name, "' has shape ",
        c10::IntArrayRef(stored.shape), "; config.json makes it ", c10::IntArrayRef(p.shape()));
    Tensor part = read_part(files, stored, p);
    if (where.interleaved_rows > 0) part = half_apart(part, where.interleaved_rows);
    p.set_leaf(part.to(dtype));
  }
}

DType stored_dtype(const ModelFolder& folder) {
  const auto files = Safetensors::open(folder.path, folder.stem);
  std::map<DType, uint64_t> bytes;
  for (const StoredTensor& t : files.tensors()) bytes[t.dtype] += t.end - t.begin;
  DType most = DType::kF32;
  uint64_t best = 0;
  for (const auto& [dtype, count] : bytes) {
    const bool is_float = at::isFloatingType(scalar_type(dtype));
    if (is_float && count > best) {
      most = dtype;
      best = count;
    }
  }
  return most;
}

}  // namespace cleave
