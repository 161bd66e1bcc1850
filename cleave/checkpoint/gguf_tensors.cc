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
    Entry entry{.info = info, .stored = info.name};
    const auto parameter = parameter_of_gguf(family, info.name);
    if (!parameter) {
      add(std::move(entry));
      continue;
    }
    entry.info.name = *parameter;
    const GgufName name = gguf_name(family, *parameter).value();
    entry.is_transposed = name.is_transposed && info.shape.size() == 2;
    if (entry.is_transposed) std::reverse(entry.info.shape.begin(), entry.info.shape.end());
    if (name.is_interleaved) set_interleaved(entry, config);
    entry.added = name.added;
    CLEAVE_CHECK(name.added == 0 || info.dtype == DType::kF32, Code::kFormat, file_.path(),
                 ": tensor '", info.name, "' is not F32, as norms must be");
    if (name.expert < 0) {
      add(std::move(entry));
      continue;
    }
    CLEAVE_CHECK(info.shape.size() == 3, Code::kFormat, file_.path(), ": tensor '", info.name,
                 "' has ", info.shape.size(), " dims; experts have 3");
    entry.info.shape.erase(entry.info.shape.begin());
    for (entry.expert = 0; entry.expert < info.shape[0]; ++entry.expert) {
      entry.info.name = parameter_of_gguf(family, info.name, entry.expert).value();
      add(entry);
    }
  }
}

void GgufTensors::add(Entry entry) {
  by_name_.emplace(entry.info.name, entries_.size());
  entries_.push_back(std::move(entry));
}

void GgufTensors::set_interleaved(Entry& entry, const Json& config) const {
  entry.interleaved_rows = config.at("head_dim").as_int(1);
  CLEAVE_CHECK(entry.interleaved_rows % 2 == 0, Code::kFormat, file_.path(), ": heads have ",
               entry.interleaved_rows, " rows; rotary positions need an even number");
  const std::vector<int64_t>& shape = entry.info.shape;
  CLEAVE_CHECK(!shape.empty() && shape[0] % entry.interleaved_rows == 0, Code::kShape, file_.path(),
               ": tensor '", entry.stored, "' does not have whole heads of ",
               entry.interleaved_rows, " rows");
}

std::vector<TensorInfo> GgufTensors::list() const {
  std::vector<TensorInfo> list;
  for (const Entry& entry : entries_) list.push_back(entry.info);
  return list;
}

const TensorInfo* GgufTensors::find(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? nullptr : &entries_[at->second].info;
}

void GgufTensors::read_block(std::string_view name, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  const TensorInfo& info = at(name);
  const Entry& entry = entries_[by_name_.at(info.name)];
  if (entry.expert >= 0) return read_expert(entry, slices, out);
  if (entry.interleaved_rows == 0 && !entry.is_transposed) {
    file_.read_block(entry.stored, slices, out);
    return subtract(entry.added, out);
  }
  const uint64_t bytes = block_bytes(info, slices);
  CLEAVE_CHECK(bytes == out.size(), Code::kUsage, name, ": the block has ", bytes,
               " bytes; the memory for it ", out.size());
  if (entry.is_transposed) return read_transposed(entry, slices, out);
  read_interleaved(file_, {.name = entry.stored, .interleaved_rows = entry.interleaved_rows},
                   slices, out);
}

std::optional<Int4Layout> GgufTensors::int4_layout(std::string_view name) const {
  const auto at = by_name_.find(std::string(name));
  return at == by_name_.end() ? std::nullopt : file_.int4_layout(entries_[at->second].stored);
}

void GgufTensors::read_int4(std::string_view name, const Int4Block& block,
                            const Int4Memory& out) const {
  const Entry& entry = entries_[by_name_.at(at(name).name)];
  if (entry.interleaved_rows == 0) return file_.read_int4(entry.stored, block, out);
  size_t num_groups = 0;  // of a row
  for (const Range& range : block.groups) num_groups += static_cast<size_t>(range.size());
  size_t done = 0;
  const auto part = [&](std::span<std::byte> memory, size_t bytes) {
    return memory.empty() ? memory : memory.subspan(done * num_groups * bytes, num_groups * bytes);
  };
  for (const Range& rows : block.rows) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t row = interleaved_row(r, entry.interleaved_rows);
      file_.read_int4(entry.stored, {.rows = {{row, row + 1}}, .groups = block.groups},
                      {part(out.codes, 16), part(out.scales, 2), part(out.mins, 2)});
      ++done;
    }
  }
}

void GgufTensors::read_expert(const Entry& entry, std::span<const Slice> slices,
                              std::span<std::byte> out) const {
  std::vector<Slice> stored{{.dim = 0, .ranges = {{entry.expert, entry.expert + 1}}}};
  for (const Slice& slice : slices)
    stored.push_back({.dim = slice.dim + 1, .ranges = slice.ranges});
  file_.read_block(entry.stored, stored, out);
}

void GgufTensors::read_transposed(const Entry& entry, std::span<const Slice> slices,
                                  std::span<std::byte> out) const {
  std::vector<Slice> stored(slices.begin(), slices.end());
  auto num_rows = static_cast<size_t>(entry.info.shape[0]);
  for (Slice& slice : stored) {
    if (slice.dim == 0) {
      num_rows = 0;
      for (const Range& range : slice.ranges) num_rows += static_cast<size_t>(range.size());
    }
    slice.dim = 1 - slice.dim;
  }
  if (out.empty()) return;
  std::vector<std::byte> block(out.size());
  file_.read_block(entry.stored, stored, block);
  const auto item = static_cast<size_t>(item_bytes(entry.info.dtype));
  const size_t num_columns = out.size() / (num_rows * item);
  for (size_t row = 0; row < num_rows; ++row) {
    for (size_t column = 0; column < num_columns; ++column) {
      std::memcpy(out.data() + (row * num_columns + column) * item,
                  block.data() + (column * num_rows + row) * item, item);
    }
  }
}

}  // namespace cleave::inline checkpoint
