#include "cleave/tokenizer/tokenizer.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "cleave/base/error.h"

namespace cleave::inline tokenizer {
namespace {

using Ids = std::vector<int64_t>;
using What = TemplateStep::What;

void shorten(Ids& ids, int64_t length) {
  if (length < static_cast<int64_t>(ids.size())) ids.resize(static_cast<size_t>(length));
}

/// Truncates both to `max_ids` ids together: the longer one first, then both to a half.
void truncate_longest_first(Ids& first, Ids& second, int64_t max_ids) {
  auto n1 = static_cast<int64_t>(first.size());
  auto n2 = static_cast<int64_t>(second.size());
  const bool swapped = n1 > n2;
  if (swapped) std::swap(n1, n2);
  n2 = n1 > max_ids ? n1 : std::max(n1, max_ids - n1);
  if (n1 + n2 > max_ids) {
    n1 = max_ids / 2;
    n2 = n1 + max_ids % 2;
  }
  if (swapped) std::swap(n1, n2);
  shorten(first, n1);
  shorten(second, n2);
}

void truncate(Ids& first, Ids* second, int64_t max_ids, Truncation truncation) {
  const auto total = static_cast<int64_t>(first.size() + (second != nullptr ? second->size() : 0));
  if (total <= max_ids) return;
  if (truncation == Truncation::kLongestFirst) {
    if (second == nullptr) return shorten(first, max_ids);
    return truncate_longest_first(first, *second, max_ids);
  }
  CLEAVE_CHECK(truncation == Truncation::kOnlyFirst || second != nullptr, Code::kUsage,
               "truncation 'only second' needs pairs; the batch has single texts");
  Ids& target = truncation == Truncation::kOnlyFirst ? first : *second;
  const auto length = static_cast<int64_t>(target.size());
  CLEAVE_CHECK(length > total - max_ids, Code::kShape, "a text of ", length,
               " ids cannot be truncated by ", total - max_ids,
               " ids; raise max_length or truncate the other text too");
  shorten(target, length - (total - max_ids));
}

void append_sequence(const std::vector<TemplateStep>& steps, const Ids& first, const Ids& second,
                     EncodedBatch& out) {
  Ids ids;
  Ids types;
  for (const TemplateStep& step : steps) {
    if (step.what == What::kToken) {
      ids.push_back(step.id);
    } else {
      const Ids& from = step.what == What::kFirst ? first : second;
      ids.insert(ids.end(), from.begin(), from.end());
    }
    types.resize(ids.size(), step.type_id);
  }
  out.attention_mask.emplace_back(ids.size(), 1);
  out.input_ids.push_back(std::move(ids));
  out.token_type_ids.push_back(std::move(types));
}

void pad_sequence(Ids& ids, size_t length, int64_t value, bool left) {
  if (ids.size() < length) ids.insert(left ? ids.begin() : ids.end(), length - ids.size(), value);
}

void pad(const Tokenizer& tokenizer, const BatchOptions& options, EncodedBatch& batch) {
  const std::optional<int64_t> fallback =
      tokenizer.special().pad ? tokenizer.special().pad : tokenizer.special().eos;
  const std::optional<int64_t> id = options.pad_id ? options.pad_id : fallback;
  CLEAVE_CHECK(id, Code::kUsage, "the ", tokenizer.kind(),
               " tokenizer has no padding token; give a pad_id");
  auto length = static_cast<size_t>(options.max_length);
  if (options.padding == Padding::kLongest) {
    length = 0;
    for (const Ids& ids : batch.input_ids) length = std::max(length, ids.size());
  }
  for (size_t i = 0; i < batch.input_ids.size(); ++i) {
    pad_sequence(batch.input_ids[i], length, *id, options.pad_left);
    pad_sequence(batch.attention_mask[i], length, 0, options.pad_left);
    pad_sequence(batch.token_type_ids[i], length, 0, options.pad_left);
  }
}

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

/// Whether the token is a byte token: "<0xE4>".
bool is_byte_token(const Tokenizer& tokenizer, int64_t id) {
  const std::optional<std::string> token = tokenizer.token(id);
  return token && token->size() == 6 && token->starts_with("<0x") && token->ends_with('>') &&
         std::isxdigit(static_cast<uint8_t>((*token)[3])) != 0 &&
         std::isxdigit(static_cast<uint8_t>((*token)[4])) != 0;
}

/// Length of the common prefix in bytes, without a partial character.
size_t common_prefix(const std::string& a, const std::string& b) {
  size_t same = 0;
  while (same < a.size() && same < b.size() && a[same] == b[same]) ++same;
  while (same > 0 && same < b.size() && (static_cast<uint8_t>(b[same]) & 0xC0) == 0x80) --same;
  return same;
}

/// Whether a run of byte tokens that were held back has an invalid byte: four more bytes would have
/// completed any character. The run is then held back to its end.
bool has_invalid_byte(const Tokenizer& tokenizer, std::span<const int64_t> held_back) {
  constexpr size_t kLongestCharacter = 4;
  if (held_back.size() < kLongestCharacter) return false;
  const auto last = held_back.last(kLongestCharacter);
  return std::all_of(last.begin(), last.end(),
                     [&](int64_t id) { return is_byte_token(tokenizer, id); });
}

}  // namespace

std::vector<int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int64_t> ids = encode_text(text, options.parse_special && !splits_special_);
  if (!options.add_special || template_.single.size() == 1) return ids;
  std::vector<int64_t> out;
  out.reserve(ids.size() + template_.single.size());
  for (const TemplateStep& step : template_.single) {
    if (step.what == TemplateStep::What::kToken) {
      out.push_back(step.id);
    } else {
      out.insert(out.end(), ids.begin(), ids.end());
    }
  }
  return out;
}

std::string Tokenizer::decode(std::span<const int64_t> ids, bool skip_special) const {
  if (!skip_special) return decode_ids(ids);
  std::vector<int64_t> kept;
  kept.reserve(ids.size());
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(kept),
               [this](int64_t id) { return !is_special(id); });
  return decode_ids(kept);
}

EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          std::span<const std::string> pairs, const BatchOptions& options) {
  CLEAVE_CHECK(pairs.empty() || pairs.size() == texts.size(), Code::kUsage, "there are ",
               texts.size(), " texts and ", pairs.size(), " pairs; expected as many pairs or none");
  const SequenceTemplate none;
  const SequenceTemplate& both = options.add_special ? tokenizer.sequence_template() : none;
  const std::vector<TemplateStep>& steps = pairs.empty() ? both.single : both.pair;
  const auto num_added = std::count_if(steps.begin(), steps.end(), [](const TemplateStep& step) {
    return step.what == What::kToken;
  });
  const bool bounded =
      options.truncation != Truncation::kNone || options.padding == Padding::kMaxLength;
  CLEAVE_CHECK(!bounded || options.max_length >= num_added, Code::kUsage, "a sequence of ",
               options.max_length, " tokens has no room for the ", num_added,
               " special tokens that are added; raise max_length, or --seq-len");
  EncodedBatch batch;
  for (size_t i = 0; i < texts.size(); ++i) {
    Ids first = tokenizer.encode(texts[i], {.add_special = false});
    Ids second = pairs.empty() ? Ids{} : tokenizer.encode(pairs[i], {.add_special = false});
    if (options.truncation != Truncation::kNone) {
      truncate(first, pairs.empty() ? nullptr : &second, options.max_length - num_added,
               options.truncation);
    }
    append_sequence(steps, first, second, batch);
  }
  if (options.padding != Padding::kNone) pad(tokenizer, options, batch);
  return batch;
}

/// The part of `text`, the text of the whole window, that was not returned yet and is final. Later
/// ids cannot change the first `settled` bytes.
std::string StreamDecoder::take(const std::string& text, size_t settled) {
  const size_t same = common_prefix(shown_, text);
  settled = std::max(settled, same);
  std::string added = text.substr(same, settled - same);
  shown_ = text.substr(0, settled);
  if (settled < text.size()) {
    // Only the last bytes are open. Without this, a long run of bytes that are no text would be
    // decoded again for each of them.
    constexpr size_t kLongWindow = 64;
    if (window_.size() > kLongWindow) {
      const size_t dropped = window_.size() - kLongWindow / 2;
      window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(dropped));
      num_settled_ -= std::min(num_settled_, dropped);
      shown_ = tokenizer_->decode(window_, skip_special_);
      shown_.resize(shown_.size() - (text.size() - settled));
    }
    return added;
  }
  if (added.empty()) return added;
  window_.erase(window_.begin(), window_.begin() + static_cast<std::ptrdiff_t>(num_settled_));
  num_settled_ = window_.size();
  shown_ = tokenizer_->decode(window_, skip_special_);
  return added;
}

void StreamDecoder::skip(std::span<const int64_t> ids) {
  window_.assign(ids.begin(), ids.end());
  num_settled_ = window_.size();
  shown_ = tokenizer_->decode(window_, skip_special_);
}

std::string StreamDecoder::push(int64_t id) {
  // They have no text, and end no run of byte tokens.
  if ((skip_special_ && tokenizer_->is_special(id)) || !tokenizer_->token(id)) return "";
  in_byte_run_ = is_byte_token(*tokenizer_, id);
  const bool stays_held =
      in_byte_run_ &&
      has_invalid_byte(*tokenizer_, std::span<const int64_t>(window_).subspan(num_settled_));
  window_.push_back(id);
  if (stays_held) return "";
  const std::string text = tokenizer_->decode(window_, skip_special_);
  if (in_byte_run_ && text.find(kReplacementBytes, common_prefix(shown_, text)) != text.npos) {
    return "";
  }
  // The last U+FFFD may be the beginning of an incomplete character.
  const bool may_change = text.ends_with(kReplacementBytes);
  return take(text, text.size() - (may_change ? kReplacementBytes.size() : 0));
}

std::string StreamDecoder::finish(std::span<const int64_t> ids) {
  window_.insert(window_.end(), ids.begin(), ids.end());
  const std::string text = tokenizer_->decode(window_, skip_special_);
  return take(text, text.size());
}

}  // namespace cleave::inline tokenizer
