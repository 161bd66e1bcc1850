#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cleave {

/// Token ids in order.
using Ids = std::vector<int64_t>;

/// When a beam search of one prompt ends: with as many ended beams as were asked for (kTrue), when
/// the best running beam at its present length cannot beat the worst ended one (kFalse), or when it
/// cannot at any length (kNever).
enum class EarlyStopping : uint8_t { kFalse, kTrue, kNever };

/// Whether texts end a sequence: told the prompt and the new ids, of which the last one is new.
using EndsText = std::function<bool(std::span<const int64_t> prompt, std::span<const int64_t> ids)>;

/// Logits divided by a smaller temperature may leave the range of floats.
inline constexpr double kLeastTemperature = 1e-6;

/// How sequences are searched or drawn; the meaning of each is that of transformers' generate().
struct GenerateSettings {
  int64_t max_new_tokens = 64;       ///< >= 1
  int64_t num_beams = 1;             ///< >= 1; 1 = no beam search
  int64_t num_return_sequences = 1;  ///< of each prompt; at most num_beams unless do_sample
  double length_penalty = 1.0;       ///< a beam's score is its log-probability / length^penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  int64_t no_repeat_ngram_size = 0;  ///< 0 = off
  double repetition_penalty = 1.0;   ///< > 0; 1 = off
  bool do_sample = false;
  double temperature = 1.0;  ///< >= kLeastTemperature
  int64_t top_k = 50;        ///< 0 = off
  double top_p = 1.0;        ///< in (0, 1]; 1 = off
  uint64_t seed = 0;
  int64_t first_prompt = 0;  ///< number of the first prompt among all: part of every draw
  Ids eos_ids{};             ///< ids that end a sequence
  EndsText ends_text{};      ///< may be empty
};

/// One continuation.
struct Sequence {
  Ids ids{};         ///< without the prompt, the end id included, no padding
  double score = 0;  ///< sum of log-probabilities / length^length_penalty
};

/// What came of a batch of prompts.
struct Generation {
  std::vector<std::vector<Sequence>> prompts{};  ///< of each prompt its sequences, best first
  int64_t num_tokens = 0;                        ///< new ids of all sequences
  double seconds = 0;                            ///< from the call to the last id
  double first_token_s = 0;                      ///< from the call to the first id

  /// New tokens of all rows per second.
  [[nodiscard]] double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0;
  }
};

/// ConfigFingerprint of each new id as it comes: prompt, number of the sequence among that prompt's, id. Beam
/// search tells nothing, since beams change until the end.
using OnToken = std::function<void(int64_t prompt, int64_t sequence, int64_t id)>;

}  // namespace cleave
