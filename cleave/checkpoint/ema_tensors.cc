#include "cleave/checkpoint/ema_tensors.h"

#include <utility>

#include "cleave/base/error.h"
#include "cleave/checkpoint/names.h"

namespace cleave::inline checkpoint {

EmaTensors::EmaTensors(std::unique_ptr<TensorSource> weights, const std::string& checkpoint,
                       std::string_view prefix)
    : weights_(std::move(weights)),
      optimizer_(Safetensors::open(checkpoint, kOptimizerStem)),
      prefix_(prefix) {
  size_t num_averaged = 0;
  for (TensorInfo& info : weights_->list()) {
    if (const StoredTensor* average = average_of(info.name)) {
      CLEAVE_CHECK(average->shape == info.shape, Code::kFormat, optimizer_.path(), ": ",
                   average->name, " has another shape than the weight in ", weights_->path());
      info.dtype = average->dtype;
      ++num_averaged;
    }
    add(std::move(info));
  }
  CLEAVE_CHECK(num_averaged > 0, Code::kFormat, checkpoint,
               " has no averaged weights; train with --ema to keep them");
}

const StoredTensor* EmaTensors::average_of(std::string_view name) const {
  if (name.starts_with(prefix_)) name.remove_prefix(prefix_.size());
  return optimizer_.find(state_name(kEma, name));
}

void EmaTensors::read_block(std::string_view name, std::span<const Slice> slices,
                            std::span<std::byte> out) const {
  const StoredTensor* average = average_of(name);
  if (average != nullptr) return optimizer_.read_block(*average, slices, out);
  weights_->read_block(name, slices, out);
}

std::vector<std::string> EmaTensors::file_names() const {
  std::vector<std::string> names = weights_->file_names();
  for (std::string& name : optimizer_.file_names()) names.push_back(std::move(name));
  return names;
}

}  // namespace cleave::inline checkpoint
