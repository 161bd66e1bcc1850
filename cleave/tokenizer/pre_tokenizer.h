#pragma once
#include <functional>
#include <memory>
#include <string_view>

#include "cleave/text/json.h"

namespace cleave {

/// Takes the pieces one by one. `at_start`: the piece begins where the whole text begins. The view
/// lives during the call.
using PieceSink = std::function<void(std::string_view piece, bool at_start)>;

/// Splits a normalised text into the pieces that the model sees one at a time, and may rewrite
/// them.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Gives the pieces of `text` to `sink` in order.
  virtual void split(std::string_view text, bool at_start, const PieceSink& sink) const = 0;
};

/// The "pre_tokenizer" of a tokenizer.json (not null): Sequence, ByteLevel, Split, Metaspace,
/// Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits. Throws Error(kFormat) for
/// others.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json);

/// GPT-2's: its regular expression, then bytes as characters.
std::unique_ptr<PreTokenizer> make_gpt2_pre_tokenizer(bool add_prefix_space);
/// A regular expression whose matches stand alone, then bytes as characters.
std::unique_ptr<PreTokenizer> make_byte_pre_tokenizer(std::string_view pattern);
/// BERT's: at white space, which is dropped, and around punctuation.
std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer();

}  // namespace cleave
