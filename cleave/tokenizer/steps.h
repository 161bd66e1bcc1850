#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/text/json.h"

namespace cleave::inline tokenizer {

// The steps of a tokenizer.json around the model: normalizer, pre-tokenizer and decoder.

/// Rewrites a text before it is split into words.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  /// The rewritten text. Never throws because of the text; malformed UTF-8 may become U+FFFD.
  [[nodiscard]] virtual std::string normalize(std::string text) const = 0;
};

/// Reads the "normalizer" of a tokenizer.json (not null): Sequence, Prepend, Replace, NFC, NFD,
/// NFKC, NFKD, Lowercase, Strip, StripAccents, BertNormalizer, Precompiled. Throws Error(kFormat)
/// for others.
std::unique_ptr<Normalizer> read_normalizer(const Json& json);

/// Reads a Precompiled, the table of replacements of a SentencePiece model. Throws Error(kFormat)
/// if the table is malformed.
std::unique_ptr<Normalizer> read_precompiled(const Json& json);

/// Options of BertNormalizer.
struct BertNormalizerOptions {
  bool clean_text = true;     ///< remove control characters, replace white space by spaces
  bool chinese_chars = true;  ///< put spaces around ideographs
  bool strip_accents = true;
  bool lowercase = true;
};
/// Reads the members of a BertNormalizer.
BertNormalizerOptions read_bert_options(const Json& json);
/// BERT's normalizer.
std::unique_ptr<Normalizer> make_bert_normalizer(const BertNormalizerOptions& options);

/// Receives the pieces one by one. `at_start`: the piece begins where the whole text begins. The
/// view is valid during the call.
using PieceSink = std::function<void(std::string_view piece, bool at_start)>;

/// Splits a normalized text into pieces, which the model tokenizes one at a time, and may rewrite
/// them.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Passes the pieces of `text` to `sink` in order.
  virtual void split(std::string_view text, bool at_start, const PieceSink& sink) const = 0;
};

/// Reads the "pre_tokenizer" of a tokenizer.json (not null): Sequence, ByteLevel, Split, Metaspace,
/// Whitespace, WhitespaceSplit, BertPreTokenizer, Punctuation, Digits. Throws Error(kFormat) for
/// others.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json);

/// GPT-2's pre-tokenizer: splits by its regular expression, then writes bytes as characters.
std::unique_ptr<PreTokenizer> make_gpt2_pre_tokenizer(bool add_prefix_space);
/// Isolates the matches of a regular expression, then writes bytes as characters.
std::unique_ptr<PreTokenizer> make_byte_pre_tokenizer(std::string_view pattern);
/// BERT's pre-tokenizer: splits at white space, which is removed, and around punctuation.
std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer();

/// Turns tokens back into text. The decoded text is the concatenation of the rewritten tokens.
class TokenDecoder {
 public:
  virtual ~TokenDecoder() = default;
  /// Rewrites the list of tokens in place.
  virtual void decode(std::vector<std::string>& tokens) const = 0;
};

/// Reads the "decoder" of a tokenizer.json (not null): Sequence, ByteLevel, ByteFallback, Fuse,
/// Strip, Replace, WordPiece, Metaspace, BPEDecoder. Throws Error(kFormat) for others.
std::unique_ptr<TokenDecoder> read_token_decoder(const Json& json);

/// Turns byte-level characters back into bytes; malformed UTF-8 becomes U+FFFD.
std::unique_ptr<TokenDecoder> make_byte_decoder();
/// Joins words by spaces, except before a token that begins with `prefix`; with `cleanup` also
/// removes the space before punctuation and English contractions.
std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup);

/// Options of the Metaspace pre-tokenizer and decoder, which write spaces as a visible mark.
struct Metaspace {
  enum class Prepend : uint8_t { kAlways, kFirst, kNever };
  std::string mark;  ///< one character, by default U+2581
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

/// Reads "replacement", "prepend_scheme" (or the older "add_prefix_space") and "split".
Metaspace read_metaspace(const Json& json);

/// The printable character that represents a byte in byte-level vocabularies: the printable Latin-1
/// bytes represent themselves, the others are U+0100 and following in order ("\n" is U+010A, " " is
/// U+0120).
char32_t byte_to_char(uint8_t byte);

/// The byte that a character represents; nullopt for other characters.
std::optional<uint8_t> char_to_byte(char32_t character);

/// The characters of all bytes, in UTF-8.
std::string bytes_to_chars(std::string_view bytes);

/// The bytes of all characters; nullopt if a character represents no byte.
std::optional<std::string> chars_to_bytes(std::string_view characters);

/// The bytes of padded base64 text (RFC 4648); nullopt if it is invalid.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace cleave::inline tokenizer
