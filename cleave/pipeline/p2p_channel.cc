#include "cleave/pipeline/p2p_channel.h"

#include <array>

#include <ATen/ATen.h>

#include "cleave/mesh/scalar_type.h"

namespace cleave::inline pipeline {
namespace {

// A header: the StageMessage (kind, stage, micro-batch, value), number of micro-batches, dtype,
// placement (1 for a Shard, its dim, size of the whole dim), number of dims, sizes.
constexpr size_t kMaxDims = 8;
constexpr size_t kFirstSize = 10;
using Header = std::array<int64_t, kFirstSize + kMaxDims>;
static_assert(sizeof(Header) == kMessageHeaderBytes);

Tensor as_tensor(Header& header) {
  return at::from_blob(header.data(), {static_cast<int64_t>(header.size())}, at::kLong);
}

/// Throws unless a header can describe the layout.
void check_can_cross(const DTensor& value) {
  if (!value.is_split()) return;
  const Placement& p = value.placement();
  const bool is_even =
      p.is_shard() && p.split() == Split::balanced(p.split()->whole(), value.axis().size());
  CLEAVE_CHECK(p.is_replicate() || is_even, Code::kShape, value.maker(), ": its output is ",
               p.describe(), p.is_shard() ? " with uneven shards" : "",
               " and cannot cross to the next pipeline stage; end the stage at a layer that gives "
               "Replicate or an even Shard");
}

}  // namespace

void P2PChannel::send(const StageMessage& message, const DTensor& value) {
  check_can_cross(value);
  const int to = message.stage % pp_.size();
  if (to == pp_.rank()) {
    early_.emplace(message, value.with(value.local().detach()));
    return;
  }
  const Tensor& t = value.local();
  CLEAVE_CHECK(static_cast<size_t>(t.dim()) <= kMaxDims, Code::kShape, value.maker(),
               ": its output has ", t.dim(), " dims; at most ", kMaxDims,
               " cross to the next pipeline stage");
  const bool is_shard = value.is_split() && value.placement().is_shard();
  Header header{static_cast<int64_t>(message.kind),
                message.stage,
                message.micro_batch,
                message.value,
                num_micro_batches_,
                static_cast<int64_t>(dtype_of(t.scalar_type())),
                is_shard ? 1 : 0,
                is_shard ? value.placement().dim() : 0,
                is_shard ? value.placement().split()->whole() : 0,
                t.dim()};
  std::copy(t.sizes().begin(), t.sizes().end(), header.begin() + kFirstSize);
  pp_.send(as_tensor(header), to, "header of a stage's message");
  pp_.send(t.detach(), to, "a stage's message");
}

DTensor P2PChannel::read(int from, const DTensor& like, StageMessage& message) {
  Tensor words = pp_.recv(from, {static_cast<int64_t>(Header().size())}, at::kLong,
                          "header of a stage's message");
  const auto* header = words.const_data_ptr<int64_t>();
  message = {.kind = static_cast<StageMessage::Kind>(header[0]),
             .stage = static_cast<int>(header[1]),
             .micro_batch = static_cast<int>(header[2]),
             .value = static_cast<int>(header[3])};
  CLEAVE_CHECK(header[4] == num_micro_batches_, Code::kDesync, "rank ", from, " of axis ",
               pp_.name(), " runs ", header[4], " micro-batches, rank ", pp_.rank(), " runs ",
               num_micro_batches_, "; give all ranks of a pipeline the same batch");
  const auto dtype = scalar_type(static_cast<DType>(header[5]));
  const at::IntArrayRef shape(header + kFirstSize, static_cast<size_t>(header[9]));
  const Tensor t = pp_.recv(from, shape, like.local().options().dtype(dtype), "a stage's message");
  Placement placement = Replicate{};
  if (header[6] != 0) {
    placement = Shard{static_cast<int>(header[7]), Split::balanced(header[8], like.axis().size())};
  }
  return {t, like.axis(), placement};
}

DTensor P2PChannel::receive(const StageMessage& message, int from, const DTensor& like) {
  while (!early_.contains(message)) {
    if (from == pp_.rank()) CLEAVE_BUG("a stage's message to its own rank was never sent");
    StageMessage received;
    DTensor value = read(from, like, received);
    early_.emplace(received, std::move(value));
  }
  return early_.extract(message).mapped();
}

}  // namespace cleave::inline pipeline
