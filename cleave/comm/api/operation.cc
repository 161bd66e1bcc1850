#include "cleave/comm/api/operation.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <xxhash.h>

namespace cleave::inline comm {
namespace {

uint64_t hash(std::span<const int64_t> sizes) {
  return sizes.empty() ? 0 : XXH3_64bits(sizes.data(), sizes.size_bytes());
}

void copy_sizes(int64_t (&to)[kNumShownSizes], std::span<const int64_t> from) {
  std::copy_n(from.begin(), std::min<size_t>(from.size(), kNumShownSizes), to);
}

std::string list(const int64_t (&sizes)[kNumShownSizes], uint64_t count) {
  const auto shown = std::span(sizes).first(std::min<size_t>(count, kNumShownSizes));
  return str("[", list_text(shown), count > kNumShownSizes ? ", ...]" : "]");
}

bool has_elements(Op op) {
  return op != Op::kBarrier && op != Op::kNone;
}

}  // namespace

std::string_view name(Op op) {
  switch (op) {
    case Op::kNone:
      return "nothing";
    case Op::kBarrier:
      return "barrier";
    case Op::kAllReduce:
      return "all_reduce";
    case Op::kAllGather:
      return "all_gather";
    case Op::kReduceScatter:
      return "reduce_scatter";
    case Op::kBroadcast:
      return "broadcast";
    case Op::kAllToAll:
      return "all_to_all";
    case Op::kSend:
      return "send";
    case Op::kRecv:
      return "recv";
  }
  return "unknown operation";
}

std::string_view name(ReduceOp op) {
  return op == ReduceOp::kMax ? "max" : "sum";
}

CallHeader make_header(const Operation& operation, uint32_t group, uint64_t sequence) {
  const Call& call = operation.call;
  CallHeader header{};
  header.magic = kLayoutVersion;
  header.group = group;
  header.sequence = sequence;
  header.count = static_cast<uint64_t>(operation.count);
  header.shape_hash = hash(call.shape);
  header.widths_hash = hash(operation.widths);
  header.site_hash = call.site.empty() ? 0 : XXH3_64bits(call.site.data(), call.site.size());
  header.root = operation.root;
  header.op = operation.op;
  header.reduce_op = static_cast<uint8_t>(operation.reduce_op);
  header.dtype = static_cast<uint8_t>(operation.dtype);
  header.num_dims = static_cast<uint8_t>(std::min<size_t>(call.shape.size(), UINT8_MAX));
  header.num_widths = static_cast<uint32_t>(operation.widths.size());
  header.on_device = operation.on_device ? 1 : 0;
  return header;
}

uint64_t digest(const CallHeader& header) {
  return XXH3_64bits(&header, sizeof(header));
}

void fill_note(CallNote& note, const Operation& operation) {
  copy_sizes(note.dims, operation.call.shape);
  copy_sizes(note.widths, operation.widths);
  const size_t size = std::min(operation.call.site.size(), sizeof(note.site) - 1);
  std::memcpy(note.site, operation.call.site.data(), size);
  note.site[size] = '\0';
}

std::string describe(const CallHeader& header, const CallNote& note) {
  std::string text = str(name(header.op), " ", header.sequence, " (");
  if (header.op == Op::kAllReduce || header.op == Op::kReduceScatter) {
    text += str(name(static_cast<ReduceOp>(header.reduce_op)), ", ");
  }
  if (has_elements(header.op)) text += str(name(static_cast<DType>(header.dtype)), ", ");
  if (header.num_widths != 0) {
    text += str("rows ", header.count, ", widths ", list(note.widths, header.num_widths), ", ");
  } else if (has_elements(header.op) && header.op != Op::kAllToAll) {
    text += str("count ", header.count, ", ");
  }
  if (header.root >= 0) text += str("root ", header.root, ", ");
  if (header.on_device != 0) text += "on the device, ";
  const bool named = note.site[0] != '\0';
  return text + str("shape ", list(note.dims, header.num_dims), ", at ",
                    named ? note.site : "an unnamed call", ")");
}

bool has_dtype(uint8_t value) {
  return value >= static_cast<uint8_t>(DType::kF32) && value <= static_cast<uint8_t>(DType::kBool);
}

bool is_same_call(const CallHeader& a, const CallHeader& b) {
  return std::memcmp(&a, &b, sizeof(CallHeader)) == 0;
}

}  // namespace cleave::inline comm
