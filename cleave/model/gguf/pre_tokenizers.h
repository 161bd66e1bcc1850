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

/// How Qwen2's tokenizer splits text.
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// Sources: tokenizer.json of the released models; for grok-2 llama.cpp, which normalizes nothing.
inline constexpr GgufPreTokenizer kGgufPreTokenizers[] = {
    {.name = "gpt-2"},
    {.name = "llama-bpe",
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .ignores_merges = true},
    {.name = "dbrx",  // also OLMo 2's
     .pattern =
         R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    {.name = "qwen2", .pattern = kQwen2Pattern, .normalizes = true},
    {.name = "grok-2", .pattern = kQwen2Pattern},
    {.name = "smollm", .splits_digits = true},
    {.name = "tekken",  // Mistral Nemo's
     .pattern =
         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
     .ignores_merges = true},
    {.name = "gpt-4o",  // also Phi-4-mini's
     .pattern =
         R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"}};

/// Another name that llama.cpp treats as one of kGgufPreTokenizers.
struct GgufPreTokenizerAlias {
  std::string_view name;
  std::string_view same_as;
};

/// Source: llama.cpp, llama-vocab.cpp: names with the same pattern, and the same answer to whether
/// a word that is a token becomes it and whether a text begins with the begin token by default. An
/// alias of qwen2 is one of Qwen's own vocabularies, whose texts are normalized.
inline constexpr GgufPreTokenizerAlias kGgufPreTokenizerAliases[] = {
    {"phi-2", "gpt-2"},
    {"gigachat", "gpt-2"},
    {"a.x-4.0", "gpt-2"},
    {"mellum", "gpt-2"},
    {"exaone4", "gpt-2"},
    {"mpt", "gpt-2"},
    {"olmo", "gpt-2"},
    {"jais", "gpt-2"},
    {"trillion", "gpt-2"},
    {"granite-docling", "gpt-2"},
    {"llama3", "llama-bpe"},
    {"llama-v3", "llama-bpe"},
    {"falcon3", "llama-bpe"},
    {"falcon-h1", "llama-bpe"},
    {"pixtral", "llama-bpe"},
    {"midm-2.0", "llama-bpe"},
    {"lfm2", "llama-bpe"},
    {"smaug-bpe", "dbrx"},
    {"deepseek-r1-qwen", "qwen2"},
    {"megrez", "grok-2"},
    {"kormo", "grok-2"},
    {"f2llmv2", "grok-2"},
    {"hunyuan", "grok-2"},
    {"solar-open", "grok-2"},
    {"stablelm2", "grok-2"},
    {"starcoder", "smollm"},
    {"refact", "smollm"},
    {"command-r", "smollm"},
    {"codeshell", "smollm"},
    {"exaone", "smollm"},
    {"minerva-7b", "smollm"},
    {"mellum2", "smollm"},
    {"llama4", "gpt-4o"},
    {"kanana2", "gpt-4o"},
    {"talkie", "gpt-4o"},
    {"minimax-m2", "gpt-4o"},
};

/// llama.cpp's token types, tokenizer.ggml.token_type.
enum class GgufToken : int { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

/// SentencePiece's mark of a space, U+2581.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

/// Cleave's own keys: prepend_scheme and split of a Metaspace that puts a space before the text.
/// llama.cpp does not have its rule.
inline constexpr std::string_view kGgufPrependScheme = "cleave.prepend_scheme";
inline constexpr std::string_view kGgufMetaspaceSplit = "cleave.metaspace_split";

}  // namespace cleave::inline model
