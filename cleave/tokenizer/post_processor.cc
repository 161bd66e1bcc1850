#include "cleave/tokenizer/post_processor.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace cleave {
namespace {

using What = TemplateStep::What;
using Steps = std::vector<TemplateStep>;

constexpr int64_t kMaxTypeId = 1023;

int64_t count(const Steps& steps, What what) {
  return std::count_if(steps.begin(), steps.end(),
                       [what](const TemplateStep& step) { return step.what == what; });
}

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

/// The id of ["[SEP]", 102].
int64_t read_pair_id(const Json& json, int64_t vocab_size) {
  if (!json.is(Json::Type::kArray)) json.fail("expected a token and its id");
  return json.at(size_t{1}).as_int(0, vocab_size - 1);
}

SequenceTemplate make_roberta_template(int64_t cls, int64_t sep) {
  return {.single = {{What::kToken, cls, 0}, {What::kFirst, 0, 0}, {What::kToken, sep, 0}},
          .pair = {{What::kToken, cls, 0},
                   {What::kFirst, 0, 0},
                   {What::kToken, sep, 0},
                   {What::kToken, sep, 0},
                   {What::kSecond, 0, 0},
                   {What::kToken, sep, 0}}};
}

/// The template of a sequence of processors, of which at most one may add tokens.
std::optional<SequenceTemplate> read_any(const Json& json, int64_t vocab_size) {
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
    std::optional<SequenceTemplate> one = read_any(list.at(i), vocab_size);
    if (one && out) list.at(i).fail("expected one processor that adds tokens; this is the second");
    if (one) out = std::move(one);
  }
  return out;
}

}  // namespace

SequenceTemplate make_bert_template(int64_t cls, int64_t sep) {
  return {.single = {{What::kToken, cls, 0}, {What::kFirst, 0, 0}, {What::kToken, sep, 0}},
          .pair = {{What::kToken, cls, 0},
                   {What::kFirst, 0, 0},
                   {What::kToken, sep, 0},
                   {What::kSecond, 0, 1},
                   {What::kToken, sep, 1}}};
}

SequenceTemplate read_post_processor(const Json& json, int64_t vocab_size) {
  return read_any(json, vocab_size).value_or(SequenceTemplate{});
}

}  // namespace cleave
