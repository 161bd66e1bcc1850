#include "cleave/tokenizer/sentence_piece_plugin.h"

#include <sentencepiece_processor.h>

#include "cleave/base/hash.h"
#include "cleave/text/utf8.h"

namespace cleave::inline tokenizer {
namespace {

std::optional<int64_t> id_or_nothing(int id) {
  if (id < 0) return std::nullopt;
  return id;
}

class SentencePiece final : public Tokenizer {
 public:
  SentencePiece(std::string_view bytes, const std::string& path, const SpecialNames& names) {
    const auto status = processor_.LoadFromSerializedProto({bytes.data(), bytes.size()});
    CLEAVE_CHECK(status.ok() && processor_.GetPieceSize() > 0, Code::kFormat, path, " has ",
                 bytes.size(), " bytes that are not a SentencePiece model: ", status.ToString());
    kind_ = "SentencePiece";
    fingerprint_ = hash_bytes(bytes);
    special_ = {.bos = id_or_nothing(processor_.bos_id()),
                .eos = id_or_nothing(processor_.eos_id()),
                .pad = id_or_nothing(processor_.pad_id()),
                .unk = id_or_nothing(processor_.unk_id())};
    make_template(names);
  }

  [[nodiscard]] int64_t vocab_size() const override { return processor_.GetPieceSize(); }

  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    if (id < 0 || id >= vocab_size()) return std::nullopt;
    return processor_.IdToPiece(static_cast<int>(id));
  }

  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    const int id = processor_.PieceToId({token.data(), token.size()});
    if (processor_.IdToPiece(id) != token) return std::nullopt;
    return id;
  }

  [[nodiscard]] bool is_special(int64_t id) const override {
    if (id < 0 || id >= vocab_size()) return false;
    const int piece = static_cast<int>(id);
    return processor_.IsControl(piece) || processor_.IsUnknown(piece);
  }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool /*parse_special*/) const override {
    std::vector<int> ids;
    const auto status = processor_.Encode({text.data(), text.size()}, &ids);
    CLEAVE_CHECK(status.ok(), Code::kFormat, "SentencePiece cannot encode a text of ", text.size(),
                 " bytes: ", status.ToString());
    return {ids.begin(), ids.end()};
  }

  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    std::vector<int> known;
    known.reserve(ids.size());
    for (const int64_t id : ids) {
      if (id >= 0 && id < vocab_size()) known.push_back(static_cast<int>(id));
    }
    std::string text;
    const auto status = processor_.Decode(known, &text);
    CLEAVE_CHECK(status.ok(), Code::kFormat, "SentencePiece cannot decode ", known.size(),
                 " ids: ", status.ToString());
    return replace_bad_utf8(text);
  }

 private:
  /// As in Llama: the begin token by default, the end token on request.
  void make_template(const SpecialNames& names) {
    using What = TemplateStep::What;
    const auto flag = [&names](std::string_view key, bool fallback) {
      return names.config ? names.config->bool_or(key, fallback) : fallback;
    };
    const bool begin = special_.bos && flag("add_bos_token", true);
    const bool end = special_.eos && flag("add_eos_token", false);
    const auto surround = [&](What what, int64_t type_id, std::vector<TemplateStep>& steps) {
      if (begin) steps.push_back({What::kToken, *special_.bos, type_id});
      steps.push_back({what, 0, type_id});
      if (end) steps.push_back({What::kToken, *special_.eos, type_id});
    };
    template_.single.clear();
    template_.pair.clear();
    surround(What::kFirst, 0, template_.single);
    surround(What::kFirst, 0, template_.pair);
    surround(What::kSecond, 1, template_.pair);
  }

  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace
}  // namespace cleave::inline tokenizer

void cleave_sentence_piece(std::string_view bytes, const std::string& path,
                           const cleave::SpecialNames& names,
                           std::unique_ptr<cleave::Tokenizer>* out) {
  *out = std::make_unique<cleave::SentencePiece>(bytes, path, names);
}
