#include "cleave/tokenizer/pipeline.h"

#include <algorithm>
#include <utility>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/bpe.h"
#include "cleave/tokenizer/post_processor.h"
#include "cleave/tokenizer/word_piece.h"

namespace cleave {
namespace {

class Pipeline final : public Tokenizer {
 public:
  explicit Pipeline(PipelineParts parts)
      : parts_(std::move(parts)),
        added_(std::move(parts_.added), parts_.normalizer.get()),
        vocab_size_(vocab_size_of(parts_.model->vocab(), added_.all())) {
    kind_ = parts_.kind;
    special_ = parts_.special;
    template_ = parts_.sequence_template;
    fingerprint_ = parts_.fingerprint;
  }

  [[nodiscard]] int64_t vocab_size() const override { return vocab_size_; }

  [[nodiscard]] std::optional<std::string> token(int64_t id) const override {
    if (const AddedToken* added = added_.find(id)) return added->content;
    const std::optional<std::string_view> known = parts_.model->vocab().token(id);
    return known ? std::optional<std::string>(*known) : std::nullopt;
  }

  [[nodiscard]] std::optional<int64_t> id_of(std::string_view token) const override {
    const std::optional<int64_t> added = added_.find(token);
    return added ? added : parts_.model->vocab().find(token);
  }

  [[nodiscard]] bool is_special(int64_t id) const override {
    const AddedToken* added = added_.find(id);
    return added != nullptr && added->special;
  }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool parse_special) const override {
    std::vector<int64_t> ids;
    ModelScratch scratch;
    const AddedTokens::Search search{.normalized = false, .parse_special = parse_special};
    added_.split(text, search, [&](size_t begin, size_t end, std::optional<int64_t> id) {
      if (id) return ids.push_back(*id);
      const std::string_view part = text.substr(begin, end - begin);
      const std::string normal =
          parts_.normalizer ? parts_.normalizer->normalize(std::string(part)) : std::string();
      encode_normalized(parts_.normalizer ? normal : part, {begin == 0, parse_special},
                        {ids, scratch});
    });
    return ids;
  }

  [[nodiscard]] std::string decode_ids(std::span<const int64_t> ids) const override {
    std::vector<std::string> tokens;
    tokens.reserve(ids.size());
    for (const int64_t id : ids) {
      if (const AddedToken* added = added_.find(id)) {
        tokens.push_back(added->text);
      } else if (const auto known = parts_.model->vocab().token(id)) {
        tokens.emplace_back(*known);
      }
    }
    if (parts_.decoder) parts_.decoder->decode(tokens);
    std::string out;
    for (const std::string& text : tokens) {
      if (!parts_.decoder && !out.empty()) out.push_back(' ');
      out += text;
    }
    return replace_bad_utf8(out);
  }

 private:
  struct Place {
    bool at_start;  // the part begins where the text begins
    bool parse_special;
  };
  struct Output {
    std::vector<int64_t>& ids;
    ModelScratch& scratch;
  };

  void encode_normalized(std::string_view text, const Place& place, const Output& out) const {
    const AddedTokens::Search search{.normalized = true, .parse_special = place.parse_special};
    const PieceSink to_model = [&](std::string_view piece, bool /*at_start*/) {
      parts_.model->tokenize(piece, out.ids, out.scratch);
    };
    added_.split(text, search, [&](size_t begin, size_t end, std::optional<int64_t> id) {
      if (id) return out.ids.push_back(*id);
      const std::string_view part = text.substr(begin, end - begin);
      const bool at_start = place.at_start && begin == 0;
      if (!parts_.pre_tokenizer) return to_model(part, at_start);
      parts_.pre_tokenizer->split(part, at_start, to_model);
    });
  }

  PipelineParts parts_;
  AddedTokens added_;
  int64_t vocab_size_;
};

std::string kind_of(const Json& json, const std::string& model) {
  if (model == "WordPiece") return model;
  if (json.has("decoder") && json.at("decoder").string_or("type", "") == "ByteLevel") {
    return "byte-level BPE";
  }
  return json.at("model").bool_or("byte_fallback", false) ? "SentencePiece BPE" : "BPE";
}

}  // namespace

int64_t vocab_size_of(const Vocab& vocab, const std::vector<AddedToken>& added) {
  int64_t size = vocab.end_id();
  for (const AddedToken& token : added) size = std::max(size, token.id + 1);
  return size;
}

std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts) {
  return std::make_unique<Pipeline>(std::move(parts));
}

PipelineParts read_pipeline(const Json& json) {
  PipelineParts parts;
  const Json model = json.at("model");
  const std::string type =
      model.string_or("type", model.has("merges") ? "BPE" : "WordPiece");  // absent in old files
  if (type == "BPE") {
    parts.model = Bpe::from_json(model);
  } else if (type == "WordPiece") {
    parts.model = WordPiece::from_json(model);
  } else {
    model.at("type").fail("expected BPE or WordPiece");
  }
  parts.kind = kind_of(json, type);
  if (json.has("added_tokens")) {
    parts.added = AddedTokens::from_json(json.at("added_tokens"), parts.model->vocab());
  }
  if (json.has("normalizer")) parts.normalizer = read_normalizer(json.at("normalizer"));
  if (json.has("pre_tokenizer")) {
    parts.pre_tokenizer = read_pre_tokenizer(json.at("pre_tokenizer"));
  }
  if (json.has("decoder")) parts.decoder = read_token_decoder(json.at("decoder"));
  if (json.has("post_processor")) {
    parts.sequence_template = read_post_processor(json.at("post_processor"),
                                                  vocab_size_of(parts.model->vocab(), parts.added));
  }
  return parts;
}

}  // namespace cleave
