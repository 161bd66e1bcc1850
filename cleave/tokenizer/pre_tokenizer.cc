// The pre-tokenizers of tokenizer.json.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/regex.h"
#include "cleave/tokenizer/steps.h"
#include "cleave/tokenizer/unicode.h"

namespace cleave::inline tokenizer {
namespace {

/// What happens to the delimiters at which a text is split.
enum class SplitBehavior : uint8_t {
  kRemoved,
  kIsolated,            ///< each becomes a separate piece
  kMergedWithPrevious,  ///< appended to the previous piece
  kMergedWithNext,      ///< prepended to the next piece
  kContiguous,          ///< adjacent delimiters become one piece
};

/// Merges the spans of a text, which are added in order and cover it, into pieces.
class Splitter {
 public:
  /// `emit(begin, end)` receives the pieces; none is empty.
  Splitter(SplitBehavior behavior, std::function<void(size_t, size_t)> emit)
      : behavior_(behavior), emit_(std::move(emit)) {}

  /// The next span [begin, end) of the text.
  void add(size_t begin, size_t end, bool is_delimiter);
  /// Emits the pending piece; call it after the last span.
  void finish();

 private:
  [[nodiscard]] bool joins(bool is_delimiter) const;

  SplitBehavior behavior_;
  std::function<void(size_t, size_t)> emit_;
  size_t begin_ = 0, end_ = 0;  // the pending piece; empty: none
  bool is_delimiter_ = false;   // whether the last span was a delimiter
};

SplitBehavior read_split_behavior(const Json& json) {
  const std::string& name = json.as_string();
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  json.fail("expected Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Whether the next span is part of the pending piece.
bool Splitter::joins(bool is_delimiter) const {
  if (begin_ == end_) return false;
  switch (behavior_) {
    case SplitBehavior::kMergedWithPrevious:
      return is_delimiter && !is_delimiter_;
    case SplitBehavior::kMergedWithNext:
      return !is_delimiter && is_delimiter_;
    case SplitBehavior::kContiguous:
      return is_delimiter == is_delimiter_;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      return false;
  }
  return false;
}

void Splitter::add(size_t begin, size_t end, bool is_delimiter) {
  if (begin == end) return;
  if (joins(is_delimiter)) {
    end_ = end;
  } else {
    finish();
    const bool keep = !is_delimiter || behavior_ != SplitBehavior::kRemoved;
    begin_ = begin;
    end_ = keep ? end : begin;
  }
  is_delimiter_ = is_delimiter;
}

void Splitter::finish() {
  if (begin_ < end_) emit_(begin_, end_);
  begin_ = end_ = 0;
}

Metaspace::Prepend read_prepend(const Json& json) {
  const std::string& scheme = json.as_string();
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  json.fail("expected always, first or never");
}

// Source: the encoder of the GPT-2 release (Radford et al., 2019).
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

using Steps = std::vector<std::unique_ptr<PreTokenizer>>;

class PreTokenizerChain final : public PreTokenizer {
 public:
  explicit PreTokenizerChain(Steps steps) : steps_(std::move(steps)) {}
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    run(0, text, at_start, sink);
  }

 private:
  void run(size_t step, std::string_view text, bool at_start, const PieceSink& sink) const {
    if (step == steps_.size()) return sink(text, at_start);
    steps_[step]->split(text, at_start, [&, step](std::string_view piece, bool start) {
      run(step + 1, piece, start, sink);
    });
  }
  Steps steps_;
};

/// A function that passes the piece of `text` between two byte positions to the sink.
std::function<void(size_t, size_t)> pieces_of(std::string_view text, bool at_start,
                                              const PieceSink& sink) {
  return [text, at_start, &sink](size_t begin, size_t end) {
    sink(text.substr(begin, end - begin), at_start && begin == 0);
  };
}

class RegexSplit final : public PreTokenizer {
 public:
  RegexSplit(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    Splitter splitter(behavior_, pieces_of(text, at_start, sink));
    size_t last = 0;
    regex_.for_each(text, [&](size_t begin, size_t end) {
      splitter.add(last, begin, invert_);
      splitter.add(begin, end, !invert_);
      last = end;
    });
    splitter.add(last, text.size(), invert_);
    splitter.finish();
  }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Splits at characters of a class.
class CharacterSplit final : public PreTokenizer {
 public:
  using Class = bool (*)(char32_t);
  CharacterSplit(Class is_delimiter, SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    Splitter splitter(behavior_, pieces_of(text, at_start, sink));
    size_t run = 0;  // start of the characters since the last delimiter
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = next_code_point(text, at);
      if (is_delimiter_(point.value)) {
        splitter.add(run, at, false);
        splitter.add(at, at + point.bytes, true);
        run = at + point.bytes;
      }
      at += point.bytes;
    }
    splitter.add(run, text.size(), false);
    splitter.finish();
  }

 private:
  Class is_delimiter_;
  SplitBehavior behavior_;
};

/// Rewrites bytes as characters.
class ByteLevel final : public PreTokenizer {
 public:
  explicit ByteLevel(bool add_prefix_space) : add_prefix_space_(add_prefix_space) {}
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    const bool prefix = add_prefix_space_ && !text.starts_with(' ');
    sink(bytes_to_chars(prefix ? " " + std::string(text) : std::string(text)), at_start);
  }

 private:
  bool add_prefix_space_;
};

class PrefixSpace final : public PreTokenizer {
 public:
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    sink(text.starts_with(' ') ? std::string(text) : " " + std::string(text), at_start);
  }
};

class MetaspaceSplit final : public PreTokenizer {
 public:
  explicit MetaspaceSplit(Metaspace options)
      : options_(std::move(options)), spaces_(" ", options_.mark) {}
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    std::string marked = spaces_.apply(text);
    const bool wanted = options_.prepend == Metaspace::Prepend::kAlways ||
                        (options_.prepend == Metaspace::Prepend::kFirst && at_start);
    if (wanted && !marked.starts_with(options_.mark)) marked.insert(0, options_.mark);
    if (!options_.split) return sink(marked, at_start);
    Splitter splitter(SplitBehavior::kMergedWithNext, pieces_of(marked, at_start, sink));
    size_t last = 0;
    for (size_t at = marked.find(options_.mark); at != std::string::npos;
         at = marked.find(options_.mark, last)) {
      splitter.add(last, at, false);
      last = at + options_.mark.size();
      splitter.add(at, last, true);
    }
    splitter.add(last, marked.size(), false);
    splitter.finish();
  }

 private:
  Metaspace options_;
  Replacement spaces_;
};

/// Splits into words and runs of other characters; removes white space.
class WordSplit final : public PreTokenizer {
 public:
  void split(std::string_view text, bool at_start, const PieceSink& sink) const override {
    enum class Kind : uint8_t { kSpace, kWord, kOther };
    const auto kind_of = [](char32_t c) {
      return is_word_character(c) ? Kind::kWord : is_white_space(c) ? Kind::kSpace : Kind::kOther;
    };
    Kind kind = Kind::kSpace;
    size_t begin = 0;
    const auto piece = pieces_of(text, at_start, sink);
    for (size_t at = 0; at < text.size();) {
      const CodePoint point = next_code_point(text, at);
      const Kind next = kind_of(point.value);
      if (next != kind) {
        if (kind != Kind::kSpace) piece(begin, at);
        kind = next;
        begin = at;
      }
      at += point.bytes;
    }
    if (kind != Kind::kSpace) piece(begin, text.size());
  }
};

std::unique_ptr<PreTokenizer> make_byte_level(std::optional<Regex> regex, bool add_prefix_space) {
  Steps steps;
  if (regex && add_prefix_space) steps.push_back(std::make_unique<PrefixSpace>());
  if (regex) {
    steps.push_back(
        std::make_unique<RegexSplit>(*std::move(regex), SplitBehavior::kIsolated, false));
    add_prefix_space = false;
  }
  steps.push_back(std::make_unique<ByteLevel>(add_prefix_space));
  return std::make_unique<PreTokenizerChain>(std::move(steps));
}

std::unique_ptr<PreTokenizer> read_chain(const Json& json) {
  Steps steps;
  const Json list = json.at("pretokenizers");
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of pre-tokenizers");
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(read_pre_tokenizer(list.at(i)));
  return std::make_unique<PreTokenizerChain>(std::move(steps));
}

std::unique_ptr<PreTokenizer> read_byte_level(const Json& json) {
  std::optional<Regex> regex;
  if (json.bool_or("use_regex", true)) regex.emplace(kGpt2Pattern);
  return make_byte_level(std::move(regex), json.bool_or("add_prefix_space", true));
}

/// A regular expression that matches exactly the string `text`.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                       static_cast<uint8_t>(c) >= 0x80;
    if (!plain) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

std::unique_ptr<PreTokenizer> read_split(const Json& json) {
  const Json pattern = json.at("pattern");
  Regex regex = pattern.has("Regex") ? Regex::from_json(pattern.at("Regex"))
                                     : Regex(quoted(pattern.at("String").as_string()));
  return std::make_unique<RegexSplit>(std::move(regex), read_split_behavior(json.at("behavior")),
                                      json.bool_or("invert", false));
}

std::unique_ptr<PreTokenizer> make_character_split(CharacterSplit::Class is_delimiter,
                                                   SplitBehavior behavior) {
  return std::make_unique<CharacterSplit>(is_delimiter, behavior);
}

}  // namespace

Metaspace read_metaspace(const Json& json) {
  Metaspace out{.mark = json.string_or("replacement", "\xE2\x96\x81"),
                .prepend = Metaspace::Prepend::kAlways,
                .split = json.bool_or("split", true)};
  if (out.mark.empty() || next_code_point(out.mark, 0).bytes != out.mark.size()) {
    json.at("replacement").fail("expected one character");
  }
  if (json.has("prepend_scheme")) {
    out.prepend = read_prepend(json.at("prepend_scheme"));
  } else if (!json.bool_or("add_prefix_space", true)) {
    out.prepend = Metaspace::Prepend::kNever;
  }
  return out;
}

std::unique_ptr<PreTokenizer> make_gpt2_pre_tokenizer(bool add_prefix_space) {
  return make_byte_level(Regex(kGpt2Pattern), add_prefix_space);
}

std::unique_ptr<PreTokenizer> make_byte_pre_tokenizer(std::string_view pattern) {
  return make_byte_level(Regex(pattern), false);
}

std::unique_ptr<PreTokenizer> make_bert_pre_tokenizer() {
  Steps steps;
  steps.push_back(make_character_split(is_white_space, SplitBehavior::kRemoved));
  steps.push_back(make_character_split(is_punctuation, SplitBehavior::kIsolated));
  return std::make_unique<PreTokenizerChain>(std::move(steps));
}

std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json) {
  const Json type = json.at("type");
  const std::string& name = type.as_string();
  if (name == "Sequence") return read_chain(json);
  if (name == "ByteLevel") return read_byte_level(json);
  if (name == "Split") return read_split(json);
  if (name == "Metaspace") return std::make_unique<MetaspaceSplit>(read_metaspace(json));
  if (name == "BertPreTokenizer") return make_bert_pre_tokenizer();
  if (name == "Whitespace") return std::make_unique<WordSplit>();
  if (name == "WhitespaceSplit") {
    return make_character_split(is_white_space, SplitBehavior::kRemoved);
  }
  if (name == "Punctuation") {
    const SplitBehavior behavior =
        json.has("behavior") ? read_split_behavior(json.at("behavior")) : SplitBehavior::kIsolated;
    return make_character_split(is_punctuation, behavior);
  }
  if (name == "Digits") {
    return make_character_split(is_number, json.bool_or("individual_digits", false)
                                               ? SplitBehavior::kIsolated
                                               : SplitBehavior::kContiguous);
  }
  type.fail(
      "expected Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, "
      "BertPreTokenizer, Punctuation or Digits");
}

}  // namespace cleave::inline tokenizer
