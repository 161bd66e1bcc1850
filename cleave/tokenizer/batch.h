#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cleave/tokenizer/tokenizer.h"

namespace cleave {

/// To which length the rows of a batch are filled up.
enum class Padding : uint8_t { kNone, kLongest, kMaxLength };

/// Which text of a row loses its end when the row is longer than max_length.
enum class Truncation : uint8_t { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

/// How texts become the rows of one batch.
struct BatchOptions {
  Padding padding = Padding::kNone;
  Truncation truncation = Truncation::kNone;
  int64_t max_length = 0;  ///< ids of a row, added tokens counted; for both of the above
  bool pad_left = false;
  std::optional<int64_t> pad_id{};  ///< else the tokenizer's, else its end token
  bool add_special = true;
};

/// Rows of ids, each with a mask (1: real, 0: padding) and token types of the same length.
struct EncodedBatch {
  std::vector<std::vector<int64_t>> input_ids, attention_mask, token_type_ids;
};

/// One row for each text, or for each (text, pair); `pairs` is empty or as long as `texts`. Throws
/// Error(kUsage) for options that do not fit, Error(kShape) when the text to be cut is too short.
EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          std::span<const std::string> pairs, const BatchOptions& options);

}  // namespace cleave
