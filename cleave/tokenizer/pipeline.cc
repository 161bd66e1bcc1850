#include "cleave/tokenizer/pipeline.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cleave/text/utf8.h"

namespace cleave::inline tokenizer {
namespace {

/// Runs the parts of a tokenizer.json.
class Pipeline final : public Tokenizer {
 public:
  explicit Pipeline(PipelineParts parts)
      : parts_(std::move(parts)),
        added_(std::move(parts_.added), parts_.normalizer.get()),
        vocab_size_(vocab_size_of(parts_.model->vocab(), added_.all())) {
    kind_ = parts_.kind;
    special_ = parts_.special;
    template_ = parts_.sequence_template;
    splits_special_ = parts_.splits_special;
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

  [[nodiscard]] bool is_added(int64_t id) const override { return added_.find(id) != nullptr; }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool parse_special) const override {
    std::vector<int64_t> ids;
    PieceCache cache;
    const AddedTokens::Search search{.normalized = false, .parse_special = parse_special};
    added_.split(text, search, [&](size_t begin, size_t end, std::optional<int64_t> id) {
      if (id) return ids.push_back(*id);
      const std::string_view part = text.substr(begin, end - begin);
      const std::string normal =
          parts_.normalizer ? parts_.normalizer->normalize(std::string(part)) : std::string();
      encode_normalized(parts_.normalizer ? normal : part, {begin == 0, parse_special},
                        {ids, cache});
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
    bool at_start;  // whether the part begins where the text begins
    bool parse_special;
  };
  struct Output {
    std::vector<int64_t>& ids;
    PieceCache& cache;
  };

  void encode_normalized(std::string_view text, const Place& place, const Output& out) const {
    const AddedTokens::Search search{.normalized = true, .parse_special = place.parse_special};
    const PieceSink to_model = [&](std::string_view piece, bool /*at_start*/) {
      parts_.model->tokenize(piece, out.ids, out.cache);
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
  if (model != "BPE") return model;
  if (json.has("decoder") && json.at("decoder").string_or("type", "") == "ByteLevel") {
    return "byte-level BPE";
  }
  return json.at("model").bool_or("byte_fallback", false) ? "SentencePiece BPE" : "BPE";
}

/// The "type" of a model, which old files lack.
std::string type_of(const Json& model) {
  if (model.has("type")) return model.at("type").as_string();
  if (model.has("merges")) return "BPE";
  return model.at("vocab").is(Json::Type::kArray) ? "Unigram" : "WordPiece";
}

using What = TemplateStep::What;
using Steps = std::vector<TemplateStep>;

constexpr int64_t kMaxTypeId = 1023;

int64_t count(const Steps& steps, What what) {
  return std::count_if(steps.begin(), steps.end(),
                       [what](const TemplateStep& step) { return step.what == what; });
}

/// Reads a TemplateProcessing.
class TemplateReader {
 public:
  TemplateReader(const Json& json, int64_t vocab_size) : json_(json), vocab_size_(vocab_size) {}

  SequenceTemplate read() const {
    SequenceTemplate out;
    out.single = read_steps("single");
    if (count(out.single, What::kFirst) != 1 || count(out.single, What::kSecond) != 0) {
      json_.at("single").fail("expected the sequence A once and B not at all");
    }
    if (json_.has("pair")) {
      out.pair = read_steps("pair");
      if (count(out.pair, What::kFirst) != 1 || count(out.pair, What::kSecond) != 1) {
        json_.at("pair").fail("expected the sequences A and B once each");
      }
    }
    return out;
  }

 private:
  [[nodiscard]] Steps read_steps(std::string_view key) const {
    Steps steps;
    const Json list = json_.at(key);
    if (!list.is(Json::Type::kArray)) list.fail("expected an array");
    for (size_t i = 0; i < list.size(); ++i) append(list.at(i), steps);
    return steps;
  }

  void append(const Json& piece, Steps& steps) const {
    const bool special = piece.has("SpecialToken");
    const Json body = piece.at(special ? "SpecialToken" : "Sequence");
    const int64_t type_id = body.int_or("type_id", 0, 0, kMaxTypeId);
    const Json id = body.at("id");
    if (!special) {
      const bool first = id.as_string() == "A";
      if (!first && id.as_string() != "B") id.fail("expected A or B");
      steps.push_back({first ? What::kFirst : What::kSecond, 0, type_id});
      return;
    }
    const Json ids = json_.at("special_tokens").at(id.as_string()).at("ids");
    if (!ids.is(Json::Type::kArray)) ids.fail("expected an array of ids");
    for (size_t i = 0; i < ids.size(); ++i) {
      steps.push_back({What::kToken, ids.at(i).as_int(0, vocab_size_ - 1), type_id});
    }
  }

  Json json_;
  int64_t vocab_size_;
};

/// The id in ["[SEP]", 102].
int64_t read_pair_id(const Json& json, int64_t vocab_size) {
  if (!json.is(Json::Type::kArray)) json.fail("expected a token and its id");
  return json.at(size_t{1}).as_int(0, vocab_size - 1);
}

/// The template of a post-processor; nullopt if it adds no tokens. At most one of a Sequence may.
std::optional<SequenceTemplate> read_template(const Json& json, int64_t vocab_size) {
  const Json type = json.at("type");
  const std::string& name = type.as_string();
  if (name == "ByteLevel") return std::nullopt;
  if (name == "TemplateProcessing") return TemplateReader(json, vocab_size).read();
  if (name == "BertProcessing" || name == "RobertaProcessing") {
    const int64_t cls = read_pair_id(json.at("cls"), vocab_size);
    const int64_t sep = read_pair_id(json.at("sep"), vocab_size);
    return name == "BertProcessing" ? make_bert_template(cls, sep)
                                    : make_roberta_template(cls, sep);
  }
  if (name != "Sequence") {
    type.fail(
        "expected TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel or Sequence");
  }
  std::optional<SequenceTemplate> out;
  const Json list = json.at("processors");
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of processors");
  for (size_t i = 0; i < list.size(); ++i) {
    std::optional<SequenceTemplate> one = read_template(list.at(i), vocab_size);
    if (one && out) list.at(i).fail("expected one processor that adds tokens; this is the second");
    if (one) out = std::move(one);
  }
  return out;
}

/// The "post_processor" of a tokenizer.json (not null): TemplateProcessing, BertProcessing,
/// RobertaProcessing, ByteLevel (changes no ids), or a Sequence of them. Ids are in
/// [0, vocab_size). Throws Error(kFormat) for others.
SequenceTemplate read_post_processor(const Json& json, int64_t vocab_size) {
  return read_template(json, vocab_size).value_or(SequenceTemplate{});
}

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline(PipelineParts parts) {
  return std::make_unique<Pipeline>(std::move(parts));
}

PipelineParts read_pipeline(const Json& json) {
  PipelineParts parts;
  const Json model = json.at("model");
  const std::string type = type_of(model);
  if (type == "BPE") {
    parts.model = Bpe::from_json(model);
  } else if (type == "WordPiece") {
    parts.model = WordPiece::from_json(model);
  } else if (type == "Unigram") {
    parts.model = Unigram::from_json(model);
  } else {
    model.at("type").fail("expected BPE, Unigram or WordPiece");
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

SequenceTemplate make_text_template(std::optional<int64_t> begin, std::optional<int64_t> end) {
  const auto surrounded = [&](What what, int64_t type_id, Steps& steps) {
    if (begin) steps.push_back({What::kToken, *begin, type_id});
    steps.push_back({what, 0, type_id});
    if (end) steps.push_back({What::kToken, *end, type_id});
  };
  SequenceTemplate out{.single = {}, .pair = {}};
  surrounded(What::kFirst, 0, out.single);
  surrounded(What::kFirst, 0, out.pair);
  surrounded(What::kSecond, 1, out.pair);
  return out;
}

SequenceTemplate make_bert_template(int64_t cls, int64_t sep) {
  return {.single = {{What::kToken, cls, 0}, {What::kFirst, 0, 0}, {What::kToken, sep, 0}},
          .pair = {{What::kToken, cls, 0},
                   {What::kFirst, 0, 0},
                   {What::kToken, sep, 0},
                   {What::kSecond, 0, 1},
                   {What::kToken, sep, 1}}};
}

SequenceTemplate make_roberta_template(int64_t cls, int64_t sep) {
  return {.single = {{TemplateStep::What::kToken, cls, 0},
                     {TemplateStep::What::kFirst, 0, 0},
                     {TemplateStep::What::kToken, sep, 0}},
          .pair = {{TemplateStep::What::kToken, cls, 0},
                   {TemplateStep::What::kFirst, 0, 0},
                   {TemplateStep::What::kToken, sep, 0},
                   {TemplateStep::What::kToken, sep, 0},
                   {TemplateStep::What::kSecond, 0, 0},
                   {TemplateStep::What::kToken, sep, 0}}};
}

}  // namespace cleave::inline tokenizer
