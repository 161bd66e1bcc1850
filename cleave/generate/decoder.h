#pragma once
#include <cstdint>
#include <vector>

#include "cleave/generate/scores.h"
#include "cleave/generate/settings.h"
#include "cleave/model/model.h"
#include "cleave/nn/kv_cache.h"

namespace cleave {

/// A model at work on a batch of sequences of this rank: ids in, scores of the next token out, with
/// keys and values of what was seen kept in between.
///
/// Shorter prompts are padded on the left: padding is never attended to and positions count from
/// the first real id, so a sequence does not depend on those beside it.
class Decoder {
 public:
  /// `max_new_tokens`: how often step() may be called.
  Decoder(Model& model, const Axis& tp, const std::vector<Ids>& prompts, int64_t max_new_tokens);

  /// Runs the prompts, once each, and goes on with `copies` sequences of each, side by side. Only
  /// the last position goes through the model's head. Scores [P * copies, W].
  Scores prefill(int64_t copies);
  /// One more id of every sequence. Scores [P * copies, W].
  Scores step(const Ids& ids);
  /// Sequence i goes on from what sequence rows[i] has seen.
  void reorder(const std::vector<int64_t>& rows);

 private:
  Scores run(const Tensor& ids, const Tensor& positions);

  Model& model_;
  Axis tp_;
  at::Device device_;
  std::vector<Ids> prompts_;
  int64_t length_ = 0;  // of the longest prompt
  KvCache cache_;
  Tensor first_;     // [R] where the real ids of a row begin; undefined where all begin at 0
  Tensor key_mask_;  // [R, room for all] true = not padding; undefined without padding
  int64_t num_seen_ = 0;
};

}  // namespace cleave
