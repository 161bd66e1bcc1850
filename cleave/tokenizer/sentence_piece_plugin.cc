#include "cleave/tokenizer/sentence_piece_plugin.h"

#include <algorithm>
#include <array>
#include <sentencepiece_processor.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/pipeline.h"

namespace cleave::inline tokenizer {
namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

/// Appended to a model, the field normalizer_spec { add_dummy_prefix: false }; in protobuf the last
/// value of a field holds.
constexpr std::string_view kWithoutPrefix{"\x1A\x02\x18\x00", 4};

/// Whether a text begins with a space, spelled as in the text or as in the tokens.
bool begins_with_space(std::string_view text) {
  return text.starts_with(' ') || text.starts_with(kSpaceMark);
}

class SentencePiece final : public Tokenizer {
 public:
  SentencePiece(std::string_view bytes, const std::filesystem::path& path,
                const SpecialNames& names, uint64_t fingerprint) {
    load(bytes, path, whole_);
    load(std::string(bytes).append(kWithoutPrefix), path, continued_);
    kind_ = "SentencePiece";
    fingerprint_ = fingerprint;
    splits_special_ = names.splits_special();
    read_spaces(names);
    read_tokens(names);
    make_template(names);
  }

  [[nodiscard]] int64_t vocab_size() const override { return vocab_size_; }

  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    if (const AddedToken* added = added_.find(id)) return added->content;
    if (!is_piece(id)) return std::nullopt;
    return whole_.IdToPiece(static_cast<int>(id));
  }

  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    if (const auto added = added_.find(token)) return added;
    const int id = whole_.PieceToId({token.data(), token.size()});
    if (whole_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  [[nodiscard]] bool is_special(int64_t id) const override {
    const AddedToken* added = added_.find(id);
    return added != nullptr && added->special;
  }

  [[nodiscard]] bool is_added(int64_t id) const override { return added_.find(id) != nullptr; }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool parse_special) const override {
    std::vector<int64_t> ids;
    const AddedTokens::Search search{.normalized = false, .parse_special = parse_special};
    added_.split(text, search, [&](size_t begin, size_t end, std::optional<int64_t> id) {
      if (id) return ids.push_back(*id);
      append_pieces(text.substr(begin, end - begin), begin == 0, ids);
    });
    return ids;
  }

  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    std::string text;
    std::vector<int> run;  // of pieces
    for (const int64_t id : ids) {
      const AddedToken* added = added_.find(id);
      if (added == nullptr) {
        if (is_piece(id)) run.push_back(static_cast<int>(id));
        continue;
      }
      append_text(run, text);
      text += added->content;
    }
    append_text(run, text);
    return replace_bad_utf8(text);
  }

 private:
  using Processor = sentencepiece::SentencePieceProcessor;

  static void load(std::string_view bytes, const std::filesystem::path& path, Processor& out) {
    const auto status = out.LoadFromSerializedProto({bytes.data(), bytes.size()});
    CLEAVE_CHECK(status.ok() && out.GetPieceSize() > 0, Code::kFormat, path.string(), " has ",
                 bytes.size(), " bytes that are not a SentencePiece model: ", status.ToString());
  }

  [[nodiscard]] bool is_piece(int64_t id) const { return id >= 0 && id < whole_.GetPieceSize(); }

  /// tokenizer_config.json makes the folder one of transformers. Source: LlamaTokenizer of
  /// transformers 5.19.
  void read_spaces(const SpecialNames& names) {
    if (!names.config) return;
    only_missing_ = true;
    at_start_ = names.config->bool_or("add_prefix_space", true);
    after_added_ = at_start_ && names.config->bool_or("legacy", false);
    // A model that removes white space puts the prefix in its place.
    trims_ = continued_.EncodeAsPieces(" a") == continued_.EncodeAsPieces("a");
  }

  void read_tokens(SpecialNames names) {
    const std::array<std::pair<const char*, int>, 4> of_model{{{"bos_token", whole_.bos_id()},
                                                               {"eos_token", whole_.eos_id()},
                                                               {"pad_token", whole_.pad_id()},
                                                               {"unk_token", whole_.unk_id()}}};
    for (const auto& [role, id] : of_model) {
      if (id >= 0 && !names.is_null(role)) names.by_role.emplace(role, whole_.IdToPiece(id));
    }
    std::vector<std::string> pieces;
    pieces.reserve(static_cast<size_t>(whole_.GetPieceSize()));
    for (int id = 0; id < whole_.GetPieceSize(); ++id) pieces.push_back(whole_.IdToPiece(id));
    const Vocab vocab = Vocab::from_list(std::move(pieces));
    std::vector<AddedToken> added = names.added_tokens(vocab);
    names.add_missing(vocab, added);
    for (int id = 0; id < whole_.GetPieceSize(); ++id) {
      if (!whole_.IsControl(id) && !whole_.IsUnknown(id)) continue;
      const bool is_added = std::any_of(added.begin(), added.end(),
                                        [id](const AddedToken& token) { return token.id == id; });
      if (is_added) continue;
      added.push_back({.id = id, .content = whole_.IdToPiece(id), .special = true});
    }
    for (AddedToken& token : added) token.normalized = false;  // nothing normalizes the whole text
    vocab_size_ = vocab_size_of(vocab, added);
    special_ = names.ids(
        [&](const std::string& content) -> std::optional<int64_t> {
          for (const AddedToken& token : added) {
            if (token.content == content) return token.id;
          }
          return vocab.find(content);
        },
        added);
    added_ = AddedTokens(std::move(added), nullptr);
  }

  /// Appends the ids of text between added tokens.
  void append_pieces(std::string_view text, bool at_start, std::vector<int64_t>& ids) const {
    const bool has_space = only_missing_ && begins_with_space(text);
    const bool with_prefix = has_space ? trims_ : at_start ? at_start_ : after_added_;
    std::vector<int> pieces;
    const auto status =
        (with_prefix ? whole_ : continued_).Encode({text.data(), text.size()}, &pieces);
    CLEAVE_CHECK(status.ok(), Code::kFormat, "SentencePiece cannot encode a text of ", text.size(),
                 " bytes: ", status.ToString());
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  /// Appends the text of pieces and removes them. The space before the first is the prefix.
  void append_text(std::vector<int>& pieces, std::string& text) const {
    if (pieces.empty()) return;
    std::string part;
    const bool with_prefix = text.empty() && at_start_;
    const auto status = (with_prefix ? whole_ : continued_).Decode(pieces, &part);
    CLEAVE_CHECK(status.ok(), Code::kFormat, "SentencePiece cannot decode ", pieces.size(),
                 " ids: ", status.ToString());
    text += part;
    pieces.clear();
  }

  /// As in Llama: the begin token by default, the end token on request.
  void make_template(const SpecialNames& names) {
    const auto wanted = [&names](std::string_view key, std::optional<int64_t> id, bool fallback) {
      return (names.config ? names.config->bool_or(key, fallback) : fallback) ? id : std::nullopt;
    };
    template_ = make_text_template(wanted("add_bos_token", special_.bos, true),
                                   wanted("add_eos_token", special_.eos, false));
  }

  Processor whole_;      // the model of the file
  Processor continued_;  // the same without a prefix: it does not begin a text by a space
  bool at_start_ = true, after_added_ = true;  // whether a part gets the prefix of the model
  bool only_missing_ = false;                  // not before a part that begins with a space
  bool trims_ = false;                         // whether the model removes a space at the start
  AddedTokens added_;
  int64_t vocab_size_ = 0;
};

}  // namespace
}  // namespace cleave::inline tokenizer

void cleave_sentence_piece(std::string_view bytes, const std::filesystem::path& path,
                           const cleave::SpecialNames& names, uint64_t fingerprint,
                           std::unique_ptr<cleave::Tokenizer>* out) {
  *out = std::make_unique<cleave::SentencePiece>(bytes, path, names, fingerprint);
}
