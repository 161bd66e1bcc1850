#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/tokenizer/sequence_template.h"

namespace cleave {

/// How text becomes ids.
struct EncodeOptions {
  bool add_special = true;    ///< put the begin and end tokens around it that the files ask for
  bool parse_special = true;  ///< text that spells a special token becomes that token
};

/// Ids of the tokens that have a role; nothing where the files name none.
struct SpecialIds {
  std::optional<int64_t> bos{}, eos{}, pad{}, unk{}, cls{}, sep{}, mask{};
};

/// Text to ids and back. Immutable: one object serves all threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of any bytes, each in [0, vocab_size()); never throws because of the text.
  [[nodiscard]] std::vector<int64_t> encode(std::string_view text,
                                            const EncodeOptions& options = {}) const;

  /// Text of ids, valid UTF-8: bytes that are no character become U+FFFD. Ids without a token give
  /// nothing.
  [[nodiscard]] std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;

  /// Largest id + 1.
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  /// The token as the files spell it / its id; nothing when there is none.
  [[nodiscard]] virtual std::optional<std::string> token(int64_t id) const = 0;
  [[nodiscard]] virtual std::optional<int64_t> id_of(std::string_view token) const = 0;
  /// Whether decode(ids, true) leaves the token out.
  [[nodiscard]] virtual bool is_special(int64_t id) const = 0;

  /// "bytes", "byte-level BPE", "BPE", "SentencePiece", "WordPiece": for people.
  [[nodiscard]] const std::string& kind() const { return kind_; }
  [[nodiscard]] const SpecialIds& special() const { return special_; }
  /// What encode(add_special) puts around one text or a pair.
  [[nodiscard]] const SequenceTemplate& sequence_template() const { return template_; }
  /// Changes when anything that encode() depends on changes: the key of cached tokens.
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_; }

 protected:
  Tokenizer() = default;
  /// Ids of the text alone, nothing added.
  [[nodiscard]] virtual std::vector<int64_t> encode_text(std::string_view text,
                                                         bool parse_special) const = 0;
  [[nodiscard]] virtual std::string decode_ids(std::span<const int64_t> ids) const = 0;

  std::string kind_;
  SpecialIds special_;
  SequenceTemplate template_;
  uint64_t fingerprint_ = 0;
};

/// The tokenizer of a model folder: tokenizer.json, else tokenizer.model (SentencePiece or tiktoken
/// ranks), else vocab.json with merges.txt, else vocab.txt; special tokens also from
/// tokenizer_config.json and special_tokens_map.json. Throws Error(kIo) when the folder has none of
/// them, Error(kFormat) naming file, key and byte when one is wrong.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder);

/// Whether load_tokenizer would find a file in `folder`.
bool has_tokenizer(const std::string& folder);

/// Names of the files in `folder` that its tokenizer consists of: what a checkpoint copies.
std::vector<std::string> tokenizer_files(const std::string& folder);

/// Every byte is its own id; 256 is "<|endoftext|>", begin, end and padding. Vocabulary 257.
/// Nothing is added around a text.
std::shared_ptr<const Tokenizer> byte_tokenizer();

/// A file of a folder, by name.
struct NamedFile {
  std::string name, text;
};

/// The files that make a model folder carry the byte tokenizer, for load_tokenizer and for other
/// programs that read tokenizer.json.
std::vector<NamedFile> byte_tokenizer_files();

}  // namespace cleave
