#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"
#include "cleave/kernels/decode.h"
#include "cleave/kernels/host_copy.h"
#include "cleave/kernels/recorded_work.h"
#include "cleave/model/model.h"
#include "cleave/nn/kv_cache.h"

namespace cleave::inline generation {

/// How Decoder::step_chosen() chooses tokens.
struct Chooser {
  std::optional<TokenSampling> sampling{};  ///< empty: the best token
  /// With sampling: the number in [0, 1) of each sequence, for this step (0) or the next one (1).
  std::function<std::vector<double>(int64_t ahead)> uniforms{};
  /// The choices by the host.
  std::function<std::vector<Choice>(const Scores&)> on_host;
};

/// Runs a model on a batch of sequences with a KV cache: ids in, scores of the next token out.
///
/// Shorter prompts are padded on the left. Padding is masked in attention and positions count from
/// the first real id, so a sequence does not depend on the others in the batch. With longrope, the
/// longest sequence decides for all which factors the frequencies have; when it passes the length
/// at which they change, step() runs all ids again.
///
/// A model of a user may have attention that does not use the cache. If the prompts leave the cache
/// empty or incomplete, each step runs every sequence again from its first id, without padding.
class Decoder {
 public:
  /// `max_new_tokens`: how often step() may be called.
  Decoder(Model& model, const Axis& tp, const std::vector<Ids>& prompts, int64_t max_new_tokens);

  /// Runs each prompt once, or twice if the model does not use the cache, then makes `copies`
  /// consecutive sequences of it. Only the last position goes through the model's last layer, its
  /// head. Returns scores [P * copies, W].
  Scores prefill(int64_t copies);
  /// Appends one id to each sequence. Returns scores [P * copies, W].
  Scores step(const Ids& ids);
  /// The same, and chooses the next token of each sequence. If the steps are recorded on a device,
  /// the device chooses. Unless `is_last`, the device then also starts the next step with its
  /// choices, before the host knows them. If the next call has other ids, that step is repeated.
  /// `chooser` must be the same in all calls.
  std::vector<Choice> step_chosen(const Ids& ids, const Chooser& chooser, bool is_last);
  /// Makes sequence i continue from the cache of sequence rows[i].
  void reorder(const std::vector<int64_t>& rows);

  /// Whether join() can be called: not with longrope, where sequences depend on each other.
  [[nodiscard]] bool takes_others() const { return rotary_switch_ == 0; }
  /// Keeps the sequences `kept`, at least one if `others` is null, and appends all sequences of
  /// `others`, a decoder of the same model. Padding that no sequence needs is dropped. Then step()
  /// may be called `max_new_tokens` times.
  void join(const std::vector<int64_t>& kept, const Decoder* others, int64_t max_new_tokens);

 private:
  /// The step of one token for each of R sequences, recorded on a device.
  struct Recording {
    Tensor input;  // [R + 1] int64: the ids, then the number of keys; a replay leaves the next ones
    Tensor first;  // [R] int64: first_
    std::optional<TokenSampling> sampling;
    Tensor uniforms;                // [R] fp64: with sampling
    std::optional<DTensor> logits;  // [R, 1, V] fp32, of the last replay
    Tensor choices;                 // of best_tokens() or sample_tokens(), of the last replay
    std::unique_ptr<RecordedWork> work;
  };
  /// A recorded step that has begun with the choices of the one before it.
  struct StepAhead {
    Ids ids;  // what it began with
    HostCopy choices;
  };

  /// Runs the next ids [R, T] of all sequences.
  Scores run(const Tensor& ids);
  /// step() without a recording; `ids` are those that sequences_ end in.
  Scores run_next(const Ids& ids);
  /// Runs all sequences from their first ids, without the cache. Returns scores of the next ids.
  Scores run_whole();
  /// Appends one id to each of sequences_.
  void append(const Ids& ids);
  /// The logits of the last ids; `ids` [N, T] are on the device.
  DTensor logits_of(const Tensor& ids, Context context);
  /// Whether the last of the model's layers needs only the last position: it is a head.
  [[nodiscard]] bool takes_last_only(const std::vector<Layer*>& layers) const;
  [[nodiscard]] bool can_record() const;
  /// Counts a step. Returns whether it replays a recording.
  bool begins_replay();
  /// Replays the recording with one id of each sequence; the first call makes the recording.
  /// Without a chooser, the device's choices have no meaning.
  void replay(const Ids& ids, const Chooser* chooser);
  /// Starts the recorded step with `ids`, the last id of each sequence.
  void start_step(const Ids& ids, const Chooser* chooser);
  /// Sets the numbers of this step (0) or the next one (1).
  void set_uniforms(const Chooser& chooser, int64_t ahead);
  /// The host's choices for step_chosen(), after the device could not choose.
  std::vector<Choice> choose_again(const Ids& ids, const Chooser& chooser);
  /// The scores of the last replay.
  [[nodiscard]] Scores recorded_scores() const;
  /// Starts recording_, on all ranks together.
  void start_recorded();
  /// Records the step of recording_, whose input is there.
  std::unique_ptr<RecordedWork> record();
  /// Forgets the recording, whose cache is gone.
  void drop_recording();

  Model& model_;
  Axis tp_;
  Axis replicas_;  // ranks that run the same sequences (Scores::replicas)
  at::Device device_;
  std::vector<Ids> sequences_;  // [R] with the prompts
  KvCache cache_;
  bool runs_whole_ = false;  // because the model does not use the cache
  Tensor first_;             // [R] int64 on the CPU: the first real position of each sequence
  int64_t num_seen_ = 0;
  int64_t rotary_switch_ = 0;
  std::unique_ptr<Recording> recording_;
  std::optional<StepAhead> ahead_;  // not counted in num_seen_ and cache_
  int64_t num_steps_ = 0;           // with this cache
  bool host_chooses_ = false;       // because the device could not
};

}  // namespace cleave::inline generation
