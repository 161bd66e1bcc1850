#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline tokenizer {

/// One position of a sequence template: a special token, the first text or the second text.
struct TemplateStep {
  enum class What : uint8_t { kToken, kFirst, kSecond };
  What what = What::kFirst;
  int64_t id = 0;       ///< of the token
  int64_t type_id = 0;  ///< token type (segment)
};

/// The special tokens that are added to one text, and to a pair of texts.
struct SequenceTemplate {
  std::vector<TemplateStep> single{{TemplateStep::What::kFirst, 0, 0}};
  std::vector<TemplateStep> pair{{TemplateStep::What::kFirst, 0, 0},
                                 {TemplateStep::What::kSecond, 0, 1}};
};

/// Options of Tokenizer::encode().
struct EncodeOptions {
  bool add_special = true;    ///< add the special tokens of the sequence template
  bool parse_special = true;  ///< text that spells a special token becomes that token
};

/// Ids of the special tokens by role; nullopt if the tokenizer's files define none.
struct SpecialIds {
  std::optional<int64_t> bos{}, eos{}, pad{}, unk{}, cls{}, sep{}, mask{};
};

/// Converts text to ids and back. Immutable; all threads may use one object.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Ids of any bytes, each in [0, vocab_size()). Never throws because of the text.
  [[nodiscard]] std::vector<int64_t> encode(std::string_view text,
                                            const EncodeOptions& options = {}) const;

  /// Text of ids, valid UTF-8: malformed bytes become U+FFFD. Unknown ids are skipped.
  [[nodiscard]] std::string decode(std::span<const int64_t> ids, bool skip_special = false) const;

  /// Largest id + 1.
  [[nodiscard]] virtual int64_t vocab_size() const = 0;
  /// The token of an id as spelled in the files; nullopt if there is none.
  [[nodiscard]] virtual std::optional<std::string> token(int64_t id) const = 0;
  /// The id of a token as spelled in the files; nullopt if there is none.
  [[nodiscard]] virtual std::optional<int64_t> id_of(std::string_view token) const = 0;
  /// Whether decode() with skip_special skips the token.
  [[nodiscard]] virtual bool is_special(int64_t id) const = 0;
  /// Whether encode() searches the token in the text before the rest is tokenized.
  [[nodiscard]] virtual bool is_added(int64_t id) const { return is_special(id); }

  /// "bytes", "byte-level BPE", "SentencePiece BPE", "BPE", "SentencePiece",
  /// "Unigram" or "WordPiece".
  [[nodiscard]] const std::string& kind() const { return kind_; }
  [[nodiscard]] const SpecialIds& special() const { return special_; }
  /// The special tokens that encode() adds with add_special.
  [[nodiscard]] const SequenceTemplate& sequence_template() const { return template_; }
  /// Hash of everything that encode() depends on: the key of cached tokens.
  [[nodiscard]] uint64_t fingerprint() const { return fingerprint_; }

 protected:
  Tokenizer() = default;
  /// Ids of the text without added special tokens.
  [[nodiscard]] virtual std::vector<int64_t> encode_text(std::string_view text,
                                                         bool parse_special) const = 0;
  /// Text of all ids, valid UTF-8.
  [[nodiscard]] virtual std::string decode_ids(std::span<const int64_t> ids) const = 0;

  std::string kind_;
  SpecialIds special_;
  SequenceTemplate template_;
  bool splits_special_ = false;  // encode() ignores parse_special
  uint64_t fingerprint_ = 0;
};

/// Loads the tokenizer of a model folder from tokenizer.json, tokenizer.model (SentencePiece or
/// tiktoken ranks), vocab.json and merges.txt, or vocab.txt, in this order of preference; special
/// and added tokens also from tokenizer_config.json, special_tokens_map.json and added_tokens.json.
/// vocab.json and merges.txt are those of GPT-2, Qwen2 or RoBERTa, by the tokenizer_class of
/// tokenizer_config.json or the model_type of config.json; vocab.txt is BERT's. Throws Error(kIo)
/// if the folder has none of them, Error(kFormat) naming file, key and byte if one is invalid, and
/// for another tokenizer_class without tokenizer.json.
std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& folder);

/// Whether `folder` has files that load_tokenizer() reads.
bool has_tokenizer(const std::string& folder);

/// Names of the tokenizer files in `folder`, which a checkpoint copies.
std::vector<std::string> tokenizer_files(const std::string& folder);

/// The byte tokenizer: every byte is its own id; 256 is "<|endoftext|>", the begin, end and padding
/// token. Vocabulary size 257. Adds no special tokens to a text.
std::shared_ptr<const Tokenizer> byte_tokenizer();

/// A file of a folder, by name.
struct NamedFile {
  std::string name, text;
};

/// The files of the byte tokenizer, for load_tokenizer() and other programs that read
/// tokenizer.json.
std::vector<NamedFile> byte_tokenizer_files();

/// To which length the sequences of a batch are padded.
enum class Padding : uint8_t { kNone, kLongest, kMaxLength };

/// Which text of a sequence is truncated if the sequence is longer than max_length.
enum class Truncation : uint8_t { kNone, kLongestFirst, kOnlyFirst, kOnlySecond };

/// Options of encode_batch().
struct BatchOptions {
  Padding padding = Padding::kNone;
  Truncation truncation = Truncation::kNone;
  int64_t max_length = 0;  ///< ids per sequence with special tokens; for padding and truncation
  bool pad_left = false;
  std::optional<int64_t> pad_id{};  ///< default: the tokenizer's padding token, else its end token
  bool add_special = true;
};

/// Sequences of ids, each with an attention mask (1: token, 0: padding) and token types of the same
/// length.
struct EncodedBatch {
  std::vector<std::vector<int64_t>> input_ids, attention_mask, token_type_ids;
};

/// Encodes one sequence per text, or per (text, pair) if `pairs` is not empty; then it must be as
/// long as `texts`. Throws Error(kUsage) for options that do not fit, Error(kShape) if the text to
/// be truncated is too short.
EncodedBatch encode_batch(const Tokenizer& tokenizer, std::span<const std::string> texts,
                          std::span<const std::string> pairs, const BatchOptions& options);

/// Decodes a growing list of ids incrementally. Text that later ids may still change is held back:
/// an incomplete character, and a run of byte tokens (SentencePiece's <0xE4>) with an invalid byte,
/// because all bytes of such a run become U+FFFD.
///
/// The results of push() and finish() concatenate to the decoded text of all ids, with one
/// exception: if an invalid byte follows complete characters in one run of byte tokens, these
/// characters were returned already and are returned again as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  /// Sets the ids of a prompt, whose text is not returned; they only determine spaces.
  void skip(std::span<const int64_t> ids);
  /// The text that `id` completes; may be empty.
  std::string push(int64_t id);
  /// The text held back and that of the last `ids`, with U+FFFD for incomplete characters. If all
  /// ids are passed here, it is exactly the decoded text.
  std::string finish(std::span<const int64_t> ids = {});

 private:
  std::string take(const std::string& text, size_t settled);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  bool in_byte_run_ = false;
  std::vector<int64_t> window_;  // ids that the next text depends on, then those held back
  size_t num_settled_ = 0;       // ids of the window whose text was returned and is final
  std::string shown_;            // text of the window that was returned
};

/// The tokenizer of tokenizer.json and tokenizer_config.json in memory; other files only change the
/// fingerprint. `source` is the file that they were made from, for messages. Throws Error(kFormat)
/// as load_tokenizer() does.
std::shared_ptr<const Tokenizer> load_tokenizer(std::span<const NamedFile> files,
                                                const std::string& source);

}  // namespace cleave::inline tokenizer
