#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace cleave::inline generation {

/// Token ids in order.
using Ids = std::vector<int64_t>;

/// When beam search ends for a prompt: when num_beams sequences have finished (kTrue), when the
/// best running beam cannot beat the worst finished sequence at its current length (kFalse), or
/// when it cannot at any length (kNever).
enum class EarlyStopping : uint8_t { kFalse, kTrue, kNever };

/// Whether a sequence ends with the last of its new ids.
using EndsText = std::function<bool(std::span<const int64_t> prompt, std::span<const int64_t> ids)>;

/// Called on every rank before each pass of the model: over prompts that start, or over the next
/// token of the running sequences.
using BeforePass = std::function<void()>;

/// Logits divided by a smaller temperature may overflow floats.
inline constexpr double kLeastTemperature = 1e-6;

/// Settings of greedy decoding, sampling and beam search, with the meaning of transformers'
/// generate().
struct GenerateSettings {
  int64_t max_new_tokens = 64;       ///< >= 1
  int64_t num_beams = 1;             ///< >= 1; 1 = no beam search
  int64_t num_return_sequences = 1;  ///< per prompt; at most num_beams unless do_sample
  double length_penalty = 1.0;       ///< a beam's score is its log-probability / length^penalty
  EarlyStopping early_stopping = EarlyStopping::kFalse;
  int64_t no_repeat_ngram_size = 0;  ///< 0 = off
  double repetition_penalty = 1.0;   ///< > 0; 1 = off
  bool do_sample = false;
  double temperature = 1.0;  ///< >= kLeastTemperature
  int64_t top_k = 50;        ///< 0 = off
  double top_p = 1.0;        ///< in (0, 1]; 1 = off
  uint64_t seed = 0;
  int64_t max_sequences = 64;  ///< sequences that run together; >= 1
  int64_t first_prompt = 0;    ///< added to the index of each prompt, for sampling
  Ids eos_ids{};               ///< ids that end a sequence
  EndsText ends_text{};        ///< optional
  BeforePass before_pass{};    ///< optional
};

/// One continuation.
struct Sequence {
  Ids ids{};         ///< without the prompt and padding, with the end id
  double score = 0;  ///< sum of log-probabilities / length^length_penalty
};

/// The results of a call of generate().
struct Generation {
  std::vector<std::vector<Sequence>> prompts{};  ///< the sequences of each prompt, best first
  int64_t num_tokens = 0;                        ///< new ids of all sequences that have ended
  double seconds = 0;                            ///< from the call to the last id of these
  double first_token_s = 0;                      ///< from the call to the first id

  /// New tokens of all sequences per second.
  [[nodiscard]] double tokens_per_s() const {
    return seconds > 0 ? static_cast<double>(num_tokens) / seconds : 0;
  }
};

/// Called with each new id: index of the prompt, index of the sequence of that prompt, id. Beam
/// search does not call it, since beams change until the end.
using OnToken = std::function<void(int64_t prompt, int64_t sequence, int64_t id)>;

/// Called when a prompt and all before it have ended: its index, and the results so far.
using OnPrompt = std::function<void(int64_t prompt, const Generation& so_far)>;

}  // namespace cleave::inline generation
