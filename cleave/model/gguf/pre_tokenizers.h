#pragma once
#include <span>
#include <string_view>

namespace cleave::inline model {

/// A pre-tokenizer of byte-level BPE that both llama.cpp and tokenizer.json have.
struct GgufPreTokenizer {
  std::string_view name;        ///< tokenizer.ggml.pre
  std::string_view pattern{};   ///< that splits the text; empty: GPT-2's
  bool splits_digits = false;   ///< each digit alone, before GPT-2's pattern
  bool ignores_merges = false;  ///< a word that is a token becomes it
  bool normalizes = false;      ///< to NFC
};

/// Sources: tokenizer.json of the released models.
inline constexpr GgufPreTokenizer kGgufPreTokenizers[] = {
    {.name = "gpt-2"},
    {.name = "llama-bpe",
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .ignores_merges = true},
    {.name = "dbrx",  // also OLMo 2's
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {.name = "qwen2",
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .normalizes = true},
    {.name = "smollm", .splits_digits = true}};

/// llama.cpp's token types, tokenizer.ggml.token_type.
enum class GgufToken : int { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// SentencePiece's mark of a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

}  // namespace cleave::inline model
