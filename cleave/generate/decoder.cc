#include "cleave/generate/decoder.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/kernels/decode.h"
#include "cleave/kernels/device.h"
#include "cleave/model/decoder/decoder.h"
#include "cleave/nn/experts.h"
#include "cleave/runtime/kernel_switches.h"

namespace cleave::inline generation {
namespace {

int64_t longest(const std::vector<Ids>& prompts) {
  size_t length = 0;
  for (const Ids& prompt : prompts) length = std::max(length, prompt.size());
  return static_cast<int64_t>(length);
}

/// Where the model's weights are. With FSDP they can be read only inside the calls of layers.
at::Device device_of(Model& model) {
  const Parameter& first = *model.parameters().front();
  return (first.is_flat() ? first.leaf() : first.use()).device();
}

}  // namespace

Decoder::Decoder(Model& model, const Axis& tp, const std::vector<Ids>& prompts,
                 int64_t max_new_tokens)
    : model_(model),
      tp_(tp),
      replicas_(same_tokens_axis(model)),
      device_(device_of(model)),
      prompts_(prompts),
      length_(longest(prompts)),
      cache_(length_ + max_new_tokens),
      rotary_switch_(cleave::rotary_switch(model)) {}

Scores Decoder::prefill(int64_t copies) {
  const auto num_prompts = static_cast<int64_t>(prompts_.size());
  const Tensor ids = at::zeros({num_prompts, length_}, at::kLong);
  first_ = at::zeros({num_prompts}, at::kLong);
  for (int64_t p = 0; p < num_prompts; ++p) {
    const Ids& prompt = prompts_[static_cast<size_t>(p)];
    const int64_t begin = length_ - static_cast<int64_t>(prompt.size());
    first_[p] = begin;
    std::copy(prompt.begin(), prompt.end(), ids.data_ptr<int64_t>() + p * length_ + begin);
  }
  Scores scores = run(ids);
  if (num_seen_ <= rotary_switch_) ids_ = ids.repeat_interleave(copies, 0);
  if (copies == 1) return scores;
  cache_.repeat_rows(copies);
  scores.values = scores.values.repeat_interleave(copies, 0);
  first_ = first_.repeat_interleave(copies, 0);
  return scores;
}

Scores Decoder::step(const Ids& ids) {
  if (!begins_replay()) return run_next(ids);
  replay(ids, nullptr);
  return recorded_scores();
}

std::vector<Choice> Decoder::step_chosen(const Ids& ids, const Chooser& chooser, bool is_last) {
  host_chooses_ = host_chooses_ || (chooser.sampling &&
                                    !takes_sampling(*chooser.sampling, model_.facts().vocab_size));
  if (host_chooses_) return chooser.on_host(step(ids));
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
  const Tensor column = at::tensor(ids, at::kLong).unsqueeze(1);
  if (!ids_.defined()) return run(column);
  ids_ = at::cat({ids_, column}, 1);
  if (num_seen_ < rotary_switch_) return run(column);
  // The cached keys have the frequencies of shorter sequences.
  cache_ = KvCache(cache_.capacity());
  num_seen_ = 0;
  return run(std::exchange(ids_, Tensor()));
}

void Decoder::reorder(const std::vector<int64_t>& rows) {
  std::vector<int64_t> same(rows.size());
  std::iota(same.begin(), same.end(), 0);
  if (rows == same) return;
  ahead_.reset();  // its choices are in the old order
  const Tensor from = at::tensor(rows, at::kLong);
  cache_.reorder(from.to(device_, /*non_blocking=*/true));
  if (ids_.defined()) ids_ = ids_.index_select(0, from);
}

void Decoder::join(const std::vector<int64_t>& kept, const Decoder* others,
                   int64_t max_new_tokens) {
  std::vector<KvCache::Part> parts;
  std::vector<Tensor> real_tokens;  // of each sequence
  const auto add = [&](const Decoder& from, const Tensor& rows) {
    const Tensor first = from.first_.index_select(0, rows);
    parts.push_back(
        {from.cache_, rows.to(device_, /*non_blocking=*/true), first.min().item<int64_t>()});
    real_tokens.push_back(from.num_seen_ - first);
  };
  if (!kept.empty()) add(*this, at::tensor(kept, at::kLong));
  if (others != nullptr) add(*others, at::arange(others->first_.size(0)));
  const Tensor lengths = at::cat(real_tokens);
  const int64_t num_seen = lengths.max().item<int64_t>();
  drop_recording();
  cache_ = KvCache::joined(parts, num_seen + max_new_tokens);
  first_ = num_seen - lengths;
  num_seen_ = num_seen;
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

DTensor Decoder::logits_of(const Tensor& ids, Context context) {
  const std::vector<Layer*> layers = model_.sequence();
  const std::span<Layer* const> all(layers);
  DTensor x(ids, tp_, Replicate{});
  x = call_in_order(all.first(layers.size() - 1), x, context);
  if (!x.placement().is_whole()) x = x.redistribute(Replicate{});
  const Tensor last = x.local().narrow(1, x.local().size(1) - 1, 1);
  return call_in_order(all.last(1), x.with(last), context);
}

bool Decoder::can_record() const {
  return recorder_of(device_.type()) != nullptr && model_.can_record_decoding() &&
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
  return !ids_.defined() && ++num_steps_ > 1 && can_record();
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
