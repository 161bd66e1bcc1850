#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/text/json.h"

namespace cleave {

/// Turns the tokens of ids back into text: one of the steps that tokenizer.json names. What the
/// last step leaves is joined.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Rewrites the list of tokens in place.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

/// The "decoder" of a tokenizer.json (not null): Sequence, ByteLevel, ByteFallback, Fuse, Strip,
/// Replace, WordPiece, Metaspace, BPEDecoder. Throws Error(kFormat) for others.
std::unique_ptr<TokenDecoder> read_token_decoder(const Json& json);

/// Characters back to bytes; malformed UTF-8 becomes U+FFFD.
std::unique_ptr<TokenDecoder> make_byte_decoder();
/// Words joined by spaces, except where a token begins with `prefix`; with `cleanup`, no space
/// before punctuation and English contractions.
std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup);

}  // namespace cleave
