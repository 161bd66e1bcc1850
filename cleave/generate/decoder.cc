#include "cleave/generate/decoder.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/kernels/decode.h"
#include "cleave/kernels/device.h"
#include "cleave/model/decoder/decoder.h"
#include "cleave/nn/attention.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/linear.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline generation {
namespace {

int64_t longest(const std::vector<Ids>& sequences) {
  size_t length = 0;
  for (const Ids& ids : sequences) length = std::max(length, ids.size());
  return static_cast<int64_t>(length);
}

/// The number of ids of padding before each sequence. [R]
Tensor padding_of(const std::vector<Ids>& sequences) {
  const int64_t length = longest(sequences);
  std::vector<int64_t> out;
  out.reserve(sequences.size());
  for (const Ids& ids : sequences) out.push_back(length - std::ssize(ids));
  return at::tensor(out, at::kLong);
}

/// The ids with their padding. [R, T]
Tensor padded(const std::vector<Ids>& sequences) {
  const int64_t length = longest(sequences);
  Tensor out = at::zeros({std::ssize(sequences), length}, at::kLong);
  int64_t* end = out.data_ptr<int64_t>();
  for (const Ids& ids : sequences) {
    end += length;
    std::copy_backward(ids.begin(), ids.end(), end);
  }
  return out;
}

/// Each sequence `copies` times.
std::vector<Ids> repeated(const std::vector<Ids>& sequences, int64_t copies) {
  std::vector<Ids> out;
  for (const Ids& ids : sequences) out.insert(out.end(), static_cast<size_t>(copies), ids);
  return out;
}

/// Where the model's weights are. With FSDP they can be read only inside the calls of layers.
at::Device device_of(Model& model) {
  const Parameter& first = *model.parameters().front();
  return (first.leaf().defined() ? first.leaf() : first.use()).device();
}

}  // namespace

Decoder::Decoder(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                 int64_t max_new_tokens)
    : model_(model),
      tp_(tp),
      replicas_(same_tokens_axis(model)),
      device_(device_of(model)),
      sequences_(prompts),
      cache_(longest(prompts) + max_new_tokens),
      rotary_switch_(cleave::rotary_switch(model)) {}

Scores Decoder::prefill(int64_t copies) {
  first_ = padding_of(sequences_);
  Scores scores = run(padded(sequences_));
  if (!cache_.is_complete(num_seen_)) {
    runs_whole_ = true;
    cache_ = KvCache(cache_.capacity());
    scores = run_whole();
  }
  if (copies == 1) return scores;
  sequences_ = repeated(sequences_, copies);
  cache_.repeat_rows(copies);
  scores.values = scores.values.repeat_interleave(copies, 0);
  first_ = first_.repeat_interleave(copies, 0);
  return scores;
}

void Decoder::append(const Ids& ids) {
  for (size_t r = 0; r < ids.size(); ++r) sequences_[r].push_back(ids[r]);
}

Scores Decoder::step(const Ids& ids) {
  append(ids);
  if (!begins_replay()) return run_next(ids);
  replay(ids, nullptr);
  return recorded_scores();
}

std::vector<Choice> Decoder::step_chosen(const Ids& ids, const Chooser& chooser, bool is_last) {
  host_chooses_ = host_chooses_ || (chooser.sampling &&
                                    !takes_sampling(*chooser.sampling, model_.facts().vocab_size));
  if (host_chooses_) return chooser.on_host(step(ids));
  append(ids);
  std::optional<HostCopy> copy;
  if (ahead_ && ahead_->ids == ids) {
    copy = std::move(ahead_->choices);
    ++num_seen_;
    cache_.advance();
  } else if (begins_replay()) {
    replay(ids, &chooser);
    copy.emplace(recording_->choices);
  } else {
    return chooser.on_host(run_next(ids));
  }
  ahead_.reset();
  if (!is_last) {
    if (chooser.sampling) set_uniforms(chooser, 1);
    start_recorded();
    ahead_.emplace(StepAhead{.ids = {}, .choices = HostCopy(recording_->choices)});
  }
  std::optional<std::vector<Choice>> choices = choices_of(copy->wait());
  if (!choices) return choose_again(ids, chooser);
  for (const Choice& choice : *choices) {
    if (ahead_) ahead_->ids.push_back(choice.id);
  }
  return *std::move(choices);
}

std::vector<Choice> Decoder::choose_again(const Ids& ids, const Chooser& chooser) {
  host_chooses_ = true;
  ahead_.reset();
  start_step(ids, &chooser);  // the step ahead has replaced its logits
  return chooser.on_host(recorded_scores());
}

Scores Decoder::recorded_scores() const {
  Scores scores = Scores::from_logits(*recording_->logits);
  scores.replicas = replicas_;
  return scores;
}

Scores Decoder::run_next(const Ids& ids) {
  if (runs_whole_) {
    ++num_seen_;
    return run_whole();
  }
  if (num_seen_ != rotary_switch_) return run(at::tensor(ids, at::kLong).unsqueeze(1));
  // The cached keys have the frequencies of shorter sequences.
  cache_ = KvCache(cache_.capacity());
  num_seen_ = 0;
  return run(padded(sequences_));
}

Scores Decoder::run_whole() {
  std::map<int64_t, std::vector<int64_t>> rows_of_length;
  for (int64_t r = 0; r < std::ssize(sequences_); ++r) {
    // Finished sequences stay in the batch, possibly beyond the model's last position.
    const int64_t length = std::ssize(sequences_[static_cast<size_t>(r)]);
    rows_of_length[std::min(length, model_.facts().max_positions)].push_back(r);
  }
  Tensor values;
  std::optional<Scores> scores;
  for (const auto& [length, rows] : rows_of_length) {
    const Tensor ids = at::empty({std::ssize(rows), length}, at::kLong);
    int64_t* to = ids.data_ptr<int64_t>();
    for (const int64_t r : rows) {
      to = std::copy_n(sequences_[static_cast<size_t>(r)].begin(), length, to);
    }
    scores = Scores::from_logits(logits_of(ids.to(device_, /*non_blocking=*/true), Context()));
    if (!values.defined()) {
      values =
          at::empty({std::ssize(sequences_), scores->values.size(1)}, scores->values.options());
    }
    values.index_copy_(0, at::tensor(rows, at::kLong), scores->values);
  }
  scores->values = values;
  scores->replicas = replicas_;
  return *std::move(scores);
}

void Decoder::reorder(const std::vector<int64_t>& rows) {
  std::vector<int64_t> same(rows.size());
  std::iota(same.begin(), same.end(), 0);
  if (rows == same) return;
  ahead_.reset();  // its choices are in the old order
  const Tensor from = at::tensor(rows, at::kLong);
  cache_.reorder(from.to(device_, /*non_blocking=*/true));
  std::vector<Ids> sequences;
  sequences.reserve(rows.size());
  for (const int64_t r : rows) sequences.push_back(sequences_[static_cast<size_t>(r)]);
  sequences_ = std::move(sequences);
}

void Decoder::join(const std::vector<int64_t>& kept, const Decoder* others,
                   int64_t max_new_tokens) {
  std::vector<KvCache::Part> parts;
  std::vector<Ids> sequences;
  const auto add = [&](const Decoder& from, const Tensor& rows) {
    const Tensor first = from.first_.index_select(0, rows);
    parts.push_back(
        {from.cache_, rows.to(device_, /*non_blocking=*/true), first.min().item<int64_t>()});
  };
  if (!kept.empty()) add(*this, at::tensor(kept, at::kLong));
  sequences.reserve(kept.size());
  for (const int64_t r : kept) sequences.push_back(sequences_[static_cast<size_t>(r)]);
  if (others != nullptr) {
    add(*others, at::arange(others->first_.size(0)));
    sequences.insert(sequences.end(), others->sequences_.begin(), others->sequences_.end());
    runs_whole_ = runs_whole_ || others->runs_whole_;
  }
  drop_recording();
  sequences_ = std::move(sequences);
  num_seen_ = longest(sequences_);
  first_ = padding_of(sequences_);
  const int64_t capacity = num_seen_ + max_new_tokens;
  cache_ = runs_whole_ ? KvCache(capacity) : KvCache::joined(parts, capacity);
}

Scores Decoder::run(const Tensor& ids) {
  const int64_t num_tokens = ids.size(1);
  Context context;
  context.cache = &cache_;
  if (first_.any().item<bool>()) {
    // Finished sequences stay in the batch, possibly beyond the model's last position.
    const Tensor next = at::arange(num_seen_, num_seen_ + num_tokens);
    const Tensor first = first_.unsqueeze(1);
    context.positions = (next - first).clamp(0, model_.facts().max_positions - 1);
    // Padding attends to itself.
    context.first_key = at::minimum(first, next).to(device_, /*non_blocking=*/true);
  }
  num_seen_ += num_tokens;
  Scores scores =
      Scores::from_logits(logits_of(ids.to(device_, /*non_blocking=*/true), std::move(context)));
  scores.replicas = replicas_;
  return scores;
}

bool Decoder::takes_last_only(const std::vector<Layer*>& layers) const {
  // Any layer that is not a Linear may contain attention that does not use the cache.
  if (runs_whole_) return dynamic_cast<const Linear*>(layers.back()) != nullptr;
  bool has_attention = layers.size() == 1;
  layers.back()->walk([&](Layer& layer) {
    has_attention = has_attention || dynamic_cast<const HasHeads*>(&layer) != nullptr;
  });
  return !has_attention;
}

DTensor Decoder::logits_of(const Tensor& ids, Context context) {
  const std::vector<Layer*> layers = model_.sequence();
  const std::span<Layer* const> all(layers);
  const size_t num_last = takes_last_only(layers) ? 1 : 0;
  DTensor x(ids, tp_, Replicate{});
  x = call_in_order(all.first(layers.size() - num_last), x, context);
  // A plan may state that the last layer gets a sharded sequence.
  const bool is_sequence = num_last > 0 && x.placement().is_shard(1);
  if (!x.placement().is_whole()) x = x.redistribute(Replicate{});
  DTensor last = x.with(x.local().narrow(1, x.local().size(1) - 1, 1));
  if (is_sequence) last = last.redistribute(Shard{1});
  return call_in_order(all.last(num_last), last, context);
}

bool Decoder::can_record() const {
  return recorder_of(device_.type()) != nullptr && model_.can_record_decoding() && !runs_whole_ &&
         tp_.can_record() && rotary_switch_ == 0 && model_.parameters().front()->is_readable() &&
         is_on(Kernel::kAttention) && device_kernels(device_, cache_.type()) != nullptr &&
         cache_.type() == model_.parameters().front()->use().scalar_type();
}

std::unique_ptr<RecordedWork> Decoder::record() {
  return recorder_of(device_.type())([this] {
    Recording& r = *recording_;
    const int64_t rows = r.first.size(0);
    const Tensor ids = r.input.narrow(0, 0, rows).unsqueeze(1);
    Context context;
    context.cache = &cache_;
    context.num_keys = r.input.narrow(0, rows, 1);
    // Finished sequences stay in the batch, possibly beyond the model's last position.
    context.positions =
        (context.num_keys - 1 - r.first).clamp_max(model_.facts().max_positions - 1).unsqueeze(1);
    context.first_key = r.first.unsqueeze(1);
    const DTensor logits = logits_of(ids, std::move(context));
    r.logits = logits.with(logits.local().to(at::kFloat));
    // Every rank chooses among all tokens, and so the same ones.
    const Tensor all = logits.redistribute(Replicate{}).local().select(1, 0);
    const Tensor next = r.input.narrow(0, 0, rows), num_keys = r.input.narrow(0, rows, 1);
    r.choices = r.sampling ? sample_tokens(all, *r.sampling, r.uniforms, next, num_keys)
                           : best_tokens(all, next, num_keys);
  });
}

bool Decoder::begins_replay() {
  return ++num_steps_ > 1 && can_record();
}

void Decoder::replay(const Ids& ids, const Chooser* chooser) {
  ahead_.reset();  // what it wrote is written again
  if (!recording_) {
    recording_ = std::make_unique<Recording>();
    recording_->input = at::empty({std::ssize(ids) + 1}, first_.options().device(device_));
    recording_->first = first_.to(device_);
    if (chooser != nullptr && chooser->sampling) {
      recording_->sampling = chooser->sampling;
      recording_->uniforms =
          at::empty({std::ssize(ids)}, recording_->input.options().dtype(at::kDouble));
    }
  }
  ++num_seen_;
  start_step(ids, chooser);
  cache_.advance();
}

void Decoder::start_step(const Ids& ids, const Chooser* chooser) {
  Recording& r = *recording_;
  Ids input = ids;
  input.push_back(num_seen_);
  const Tensor next = at::tensor(input, at::kLong);
  r.input.copy_(next, /*non_blocking=*/true);
  if (r.sampling && chooser != nullptr) set_uniforms(*chooser, 0);
  if (!r.work) {
    r.work = record();
    r.input.copy_(next, /*non_blocking=*/true);  // the rehearsal left the ids of the next step
  }
  start_recorded();
}

void Decoder::set_uniforms(const Chooser& chooser, int64_t ahead) {
  recording_->uniforms.copy_(at::tensor(chooser.uniforms(ahead), at::kDouble),
                             /*non_blocking=*/true);
}

void Decoder::start_recorded() {
  // The recorded collectives start without comparing the ranks' calls.
  tp_.barrier("generate recorded step");
  recording_->work->replay();
}

void Decoder::drop_recording() {
  ahead_.reset();
  recording_.reset();
  num_steps_ = 0;
}

}  // namespace cleave::inline generation
