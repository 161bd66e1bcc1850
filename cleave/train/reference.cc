#include "cleave/train/reference.h"

#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/base/hash.h"
#include "cleave/base/progress.h"
#include "cleave/checkpoint/names.h"
#include "cleave/file/file.h"
#include "cleave/format/safetensors.h"
#include "cleave/train/batch_loader.h"
#include "cleave/train/rank_model.h"
#include "cleave/train/stop_request.h"

namespace cleave::inline train {
namespace {

namespace fs = std::filesystem;

// The same file may be training and evaluation data, with other values: batches differ.
std::string data_key(const Dataset& data) {
  return "data." + to_hex(data.fingerprint());
}
std::string eval_key(const Dataset& data) {
  return "eval_data." + to_hex(data.fingerprint());
}

/// A safetensors file with these [pairs, 2] fp64 tensors.
std::string file_of(const std::vector<std::pair<std::string, Tensor>>& tensors) {
  static_assert(std::endian::native == std::endian::little);
  nlohmann::ordered_json header;
  std::string values;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = values.size();
    const Tensor whole = tensor.contiguous();
    values.append(static_cast<const char*>(whole.const_data_ptr()), whole.nbytes());
    header[name] = {{"dtype", "F64"},
                    {"shape", {tensor.size(0), tensor.size(1)}},
                    {"data_offsets", {begin, values.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t size = text.size();
  std::string file(sizeof size, '\0');
  std::memcpy(file.data(), &size, sizeof size);
  return file + text + values;
}

Tensor tensor_of(const Safetensors& file, const std::string& name, const Dataset& data,
                 const char* flag) {
  const StoredTensor* stored = file.find(name);
  CLEAVE_CHECK(stored != nullptr, Code::kUsage, "the run has no reference log-probabilities for ",
               flag, ", because it was started on other data or with another --seq-len, ",
               "--tokenizer or --chat-template; give the same to resume it");
  const std::vector<int64_t> shape{data.size(), 2};
  CLEAVE_CHECK(stored->dtype == DType::kF64 && stored->shape == shape, Code::kFormat, file.path(),
               ": tensor ", name, " is ", file_name(stored->dtype), stored->shape, "; expected F64",
               shape);
  Tensor values = at::empty(shape, at::kDouble);
  file.read_block(*stored, {},
                  {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

}  // namespace

ReferenceLogProbs ReferenceLogProbs::read(const fs::path& checkpoint, const TrainSetup& setup) {
  const fs::path path = checkpoint / kReferenceName;
  const Safetensors stored = Safetensors::open(path);
  Tensor eval_data;
  if (setup.eval_data) {
    eval_data = tensor_of(stored, eval_key(*setup.eval_data), *setup.eval_data, "--eval-data");
  }
  return {.data = tensor_of(stored, data_key(*setup.data), *setup.data, "--data"),
          .eval_data = std::move(eval_data),
          .file = read_file(path)};
}

Tensor rows_of_batch(const Tensor& pairs, const SampleOrder& order, int64_t step, Range places) {
  std::vector<int64_t> samples;
  for (int64_t place = places.begin; place < places.end; ++place) {
    samples.push_back(order.at(step, place));
  }
  return pairs.index_select(0, at::tensor(samples, at::kLong)).flatten();
}

std::optional<ReferenceLogProbs> load_reference(const TrainSetup& setup, int64_t steps_done) {
  const fs::path checkpoint = setup.folder->path;
  const bool is_there = fs::exists(checkpoint / kReferenceName);
  if (setup.task != Task::kDpo) {
    CLEAVE_CHECK(!is_there, Code::kUsage, "the run in ", setup.options.out,
                 " was started with --task dpo; give the same value to resume it");
    return std::nullopt;
  }
  CLEAVE_CHECK(is_there || steps_done == 0, Code::kUsage, "the run in ", setup.options.out,
               " was started without --task dpo; omit it to resume the run, or start another one "
               "with --model ",
               setup.options.out);
  if (!is_there) return std::nullopt;
  return ReferenceLogProbs::read(checkpoint, setup);
}

namespace {

/// The log-probabilities of all pairs with the present weights. [pairs, 2] fp64, the same on all
/// ranks; undefined if a signal ends the run. Training data is read in the batches of the first
/// epoch, so that the first step has the padding, and so the rounding, of its reference.
/// Collective.
Tensor reference_of(const ReferenceRun& run, const Dataset& data, const std::string& unit) {
  const bool trains = &data == run.setup.data.get();
  const int64_t batch_size = run.setup.order.batch_size;
  const SampleOrder order = run.batches.order_of(data);
  std::optional<Progress> progress;
  if (run.world.rank() == 0) {
    progress.emplace(ProgressOptions{
        .total = data.size(), .unit = unit, .may_be_live = run.world.ranks_are_threads()});
  }
  Tensor all = at::zeros({data.size(), 2}, at::kDouble);
  for (int64_t begin = 0; begin < data.size(); begin += batch_size) {
    if (run.stop.poll("reference")) return {};
    const int64_t step = begin / batch_size;
    const int64_t left = data.size() - begin;
    const int64_t count = trains ? batch_size : std::min(batch_size, left);
    const std::vector<Batch> batches = run.batches.micro_batches(data, step, count);
    const Tensor pairs = run.rank.log_probs(batches).view({-1, 2});
    const Range own = run.batches.own_range(count);
    // The last batch of an epoch may begin the next one.
    for (int64_t place = own.begin; place < std::min(own.end, left); ++place) {
      all[order.at(step, place)].copy_(pairs[place - own.begin]);
    }
    if (progress) progress->update(std::min(begin + batch_size, data.size()));
  }
  if (progress) progress->finish();
  all = run.batches.dp().all_reduce(all, "reference log-probabilities");
  const Tensor is_wrong = at::isfinite(all).all(-1).logical_not();
  CLEAVE_CHECK(!is_wrong.any().item<bool>(), Code::kNumerics,
               "the reference log-probabilities of pair ",
               is_wrong.to(at::kLong).argmax().item<int64_t>() + 1, " of ", all.size(0),
               trains ? " of --data" : " of --eval-data", " are not finite, so no step was made; ",
               run.setup.layout.compute_type == at::kHalf
                   ? "the activations overflow fp16: give --dtype bf16 or fp32"
                   : "check the weights of --model");
  return all;
}

}  // namespace

std::optional<ReferenceLogProbs> compute_reference(const ReferenceRun& run) {
  const TrainSetup& setup = run.setup;
  Tensor data = reference_of(run, *setup.data, "reference pair");
  Tensor eval_data;
  if (setup.eval_data && run.stop.signal() == 0) {
    eval_data = reference_of(run, *setup.eval_data, "reference evaluation pair");
  }
  if (run.stop.signal() != 0) return std::nullopt;
  std::vector<std::pair<std::string, Tensor>> tensors{{data_key(*setup.data), data}};
  if (eval_data.defined()) tensors.emplace_back(eval_key(*setup.eval_data), eval_data);
  return ReferenceLogProbs{
      .data = std::move(data), .eval_data = std::move(eval_data), .file = file_of(tensors)};
}

}  // namespace cleave::inline train
