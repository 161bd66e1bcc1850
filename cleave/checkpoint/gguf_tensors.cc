#include "cleave/checkpoint/gguf_tensors.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/model/gguf/names.h"

namespace cleave::inline checkpoint {
namespace {

/// Subtracts a number from fp32 values.
void subtract(double added, std::span<std::byte> values) {
  if (added == 0) return;
  for (size_t at = 0; at < values.size(); at += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, values.data() + at, sizeof value);
    value -= static_cast<float>(added);
    std::memcpy(values.data() + at, &value, sizeof value);
  }
}

}  // namespace

GgufTensors::GgufTensors(Gguf file, const Json& config) : file_(std::move(file)) {
  const GgufFamily& family = gguf_family(file_.metadata());
  for (const TensorInfo& info : file_.list()) {
    if (info.name == kGgufRopeFactors || info.name == kGgufShortFactors ||
        info.name == kGgufLongFactors) {
      continue;
    }
    GgufModelTensor tensor{info, info.name};
    const auto parameter = parameter_of_gguf(family, info.name);
    if (!parameter) {
      add(std::move(tensor));
      continue;
    }
    tensor.name = *parameter;
    const GgufName name = gguf_name(family, *parameter).value();
    tensor.is_transposed = name.is_transposed && info.shape.size() == 2;
    if (tensor.is_transposed) std::reverse(tensor.shape.begin(), tensor.shape.end());
    if (name.is_interleaved) set_interleaved(tensor, config);
    tensor.added = name.added;
    CLEAVE_CHECK(name.added == 0 || info.dtype == DType::kF32, Code::kFormat, file_.path(),
                 ": tensor '", info.name, "' is not F32, as norms must be");
    if (name.expert < 0) {
      add(std::move(tensor));
      continue;
    }
    CLEAVE_CHECK(info.shape.size() == 3, Code::kFormat, file_.path(), ": tensor '", info.name,
                 "' has ", info.shape.size(), " dims; experts have 3");
    tensor.shape.erase(tensor.shape.begin());
    for (tensor.expert = 0; tensor.expert < info.shape[0]; ++tensor.expert) {
      tensor.name = parameter_of_gguf(family, info.name, tensor.expert).value();
      add(tensor);
    }
  }
}

void GgufTensors::set_interleaved(GgufModelTensor& tensor, const Json& config) const {
  tensor.interleaved_rows = config.at("head_dim").as_int(1);
  CLEAVE_CHECK(tensor.interleaved_rows % 2 == 0, Code::kFormat, file_.path(), ": heads have ",
               tensor.interleaved_rows, " rows; rotary positions need an even number");
  const std::vector<int64_t>& shape = tensor.shape;
  CLEAVE_CHECK(!shape.empty() && shape[0] % tensor.interleaved_rows == 0, Code::kShape,
               file_.path(), ": tensor '", tensor.stored, "' does not have whole heads of ",
               tensor.interleaved_rows, " rows");
}

void GgufTensors::read_block(std::string_view name, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  const GgufModelTensor& tensor = at(name);
  if (tensor.expert >= 0) return read_expert(tensor, slices, out);
  if (tensor.interleaved_rows == 0 && !tensor.is_transposed) {
    file_.read_block(tensor.stored, slices, out);
    return subtract(tensor.added, out);
  }
  (void)checked_block_bytes(tensor, slices, out);
  if (tensor.is_transposed) return read_transposed(tensor, slices, out);
  read_interleaved(file_, {.name = tensor.stored, .interleaved_rows = tensor.interleaved_rows},
                   slices, out);
}

std::optional<Int4Layout> GgufTensors::int4_layout(std::string_view name) const {
  const GgufModelTensor* tensor = find(name);
  return tensor == nullptr ? std::nullopt : file_.int4_layout(tensor->stored);
}

void GgufTensors::read_int4(std::string_view name, const Int4Block& block,
                            const Int4Memory& out) const {
  const GgufModelTensor& tensor = at(name);
  if (tensor.interleaved_rows == 0) return file_.read_int4(tensor.stored, block, out);
  size_t num_groups = 0;  // of a row
  for (const Range& range : block.groups) num_groups += static_cast<size_t>(range.size());
  size_t done = 0;
  const auto part = [&](std::span<std::byte> memory, size_t bytes) {
    return memory.empty() ? memory : memory.subspan(done * num_groups * bytes, num_groups * bytes);
  };
  for (const Range& rows : block.rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t row = interleaved_row(r, tensor.interleaved_rows);
      file_.read_int4(tensor.stored, {.rows = {{row, row + 1}}, .groups = block.groups},
                      {part(out.codes, 16), part(out.scales, 2), part(out.mins, 2)});
      ++done;
    }
  }
}

void GgufTensors::read_expert(const GgufModelTensor& tensor, std::span<const Slice> slices,
                              std::span<std::byte> out) const {
  std::vector<Slice> stored{{.dim = 0, .ranges = {{tensor.expert, tensor.expert + 1}}}};
  for (const Slice& slice : slices)
    stored.push_back({.dim = slice.dim + 1, .ranges = slice.ranges});
  file_.read_block(tensor.stored, stored, out);
}

void GgufTensors::read_transposed(const GgufModelTensor& tensor, std::span<const Slice> slices,
                                  std::span<std::byte> out) const {
  std::vector<Slice> stored(slices.begin(), slices.end());
  auto num_rows = static_cast<size_t>(tensor.shape[0]);
  for (Slice& slice : stored) {
    if (slice.dim == 0) {
      num_rows = 0;
      for (const Range& range : slice.ranges) num_rows += static_cast<size_t>(range.size());
    }
    slice.dim = 1 - slice.dim;
  }
  if (out.empty() || num_rows == 0) return;
  std::vector<std::byte> block(out.size());
  file_.read_block(tensor.stored, stored, block);
  const auto item = static_cast<size_t>(item_bytes(tensor.dtype));
  const size_t num_columns = out.size() / (num_rows * item);
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t column = 0; column < num_columns; ++column) {
      std::memcpy(out.data() + (row * num_columns + column) * item,
                  block.data() + (column * num_rows + row) * item, item);
    }
  }
}

}  // namespace cleave::inline checkpoint
