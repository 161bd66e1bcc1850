// The decoders of tokenizer.json.
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "cleave/text/utf8.h"
#include "cleave/tokenizer/regex.h"
#include "cleave/tokenizer/steps.h"

namespace cleave::inline tokenizer {
namespace {

constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";
using Tokens = std::vector<std::string>;

class DecoderChain final : public TokenDecoder {
 public:
  explicit DecoderChain(std::vector<std::unique_ptr<TokenDecoder>> steps)
      : steps_(std::move(steps)) {}
  void decode(Tokens& tokens) const override {
    for (const auto& step : steps_) step->decode(tokens);
  }

 private:
  std::vector<std::unique_ptr<TokenDecoder>> steps_;
};

class ByteLevelDecoder final : public TokenDecoder {
 public:
  void decode(Tokens& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += chars_to_bytes(token).value_or(token);
    tokens.assign(1, replace_bad_utf8(bytes));
  }
};

/// Tokens "<0x41>" become bytes; each byte of a run that is not valid UTF-8 becomes U+FFFD.
class ByteFallbackDecoder final : public TokenDecoder {
 public:
  void decode(Tokens& tokens) const override {
    Tokens out;
    std::string run;
    for (std::string& token : tokens) {
      if (const std::optional<char> byte = byte_of(token)) {
        run.push_back(*byte);
      } else {
        flush(run, out);
        out.push_back(std::move(token));
      }
    }
    flush(run, out);
    tokens = std::move(out);
  }

 private:
  static std::optional<char> byte_of(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return {};
    uint8_t byte = 0;
    const char* end = token.data() + 5;
    const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
    if (error != std::errc() || stop != end) return {};
    return static_cast<char>(byte);
  }

  static void flush(std::string& run, Tokens& out) {
    if (first_bad_utf8(run) == run.size()) {
      if (!run.empty()) out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacementBytes));
    }
    run.clear();
  }
};

class Fuse final : public TokenDecoder {
 public:
  void decode(Tokens& tokens) const override {
    std::string all;
    for (const std::string& token : tokens) all += token;
    tokens.clear();
    tokens.push_back(std::move(all));
  }
};

/// Removes `content` from the start of each token up to `start` times, from its end up to `stop`.
class StripDecoder final : public TokenDecoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void decode(Tokens& tokens) const override {
    for (std::string& token : tokens) {
      size_t cut = 0;
      for (int64_t i = 0; i < start_ && token.compare(cut, content_.size(), content_) == 0; ++i) {
        cut += content_.size();
      }
      token.erase(0, cut);
      for (int64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
        token.resize(token.size() - content_.size());
      }
    }
  }

 private:
  std::string content_;
  int64_t start_, stop_;
};

class ReplaceDecoder final : public TokenDecoder {
 public:
  explicit ReplaceDecoder(Replacement replacement) : replacement_(std::move(replacement)) {}
  void decode(Tokens& tokens) const override {
    for (std::string& token : tokens) token = replacement_.apply(token);
  }

 private:
  Replacement replacement_;
};

class WordPieceDecoder final : public TokenDecoder {
 public:
  WordPieceDecoder(std::string prefix, bool cleanup)
      : prefix_(std::move(prefix)), cleanup_(cleanup) {}
  void decode(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[i];
      if (i > 0 && token.starts_with(prefix_)) {
        token.erase(0, prefix_.size());
      } else if (i > 0) {
        token.insert(0, " ");
      }
      if (!cleanup_) continue;
      for (const Replacement& step : cleanup_steps()) token = step.apply(token);
    }
  }

 private:
  static const std::array<Replacement, 11>& cleanup_steps() {
    static const std::array<Replacement, 11> steps{{{" .", "."},
                                                    {" ?", "?"},
                                                    {" !", "!"},
                                                    {" ,", ","},
                                                    {" ' ", "'"},
                                                    {" n't", "n't"},
                                                    {" 'm", "'m"},
                                                    {" do not", " don't"},
                                                    {" 's", "'s"},
                                                    {" 've", "'ve"},
                                                    {" 're", "'re"}}};
    return steps;
  }
  std::string prefix_;
  bool cleanup_;
};

class MetaspaceDecoder final : public TokenDecoder {
 public:
  explicit MetaspaceDecoder(const Metaspace& options)
      : drop_first_(options.prepend != Metaspace::Prepend::kNever),
        to_nothing_(options.mark, ""),
        to_space_(options.mark, " ") {}
  void decode(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = (i == 0 && drop_first_ ? to_nothing_ : to_space_).apply(tokens[i]);
    }
  }

 private:
  bool drop_first_;
  Replacement to_nothing_, to_space_;
};

/// Replaces the end-of-word suffix by a space, and removes it from the last token.
class SuffixDecoder final : public TokenDecoder {
 public:
  explicit SuffixDecoder(const std::string& suffix) : to_space_(suffix, " "), to_end_(suffix, "") {}
  void decode(Tokens& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = (i + 1 < tokens.size() ? to_space_ : to_end_).apply(tokens[i]);
    }
  }

 private:
  Replacement to_space_, to_end_;
};

std::unique_ptr<TokenDecoder> read_chain(const Json& json) {
  std::vector<std::unique_ptr<TokenDecoder>> steps;
  const Json list = json.at("decoders");
  if (!list.is(Json::Type::kArray)) list.fail("expected an array of decoders");
  for (size_t i = 0; i < list.size(); ++i) steps.push_back(read_token_decoder(list.at(i)));
  return std::make_unique<DecoderChain>(std::move(steps));
}

std::unique_ptr<TokenDecoder> read_strip(const Json& json) {
  const Json content = json.at("content");
  const std::string& text = content.as_string();
  if (text.empty() || next_code_point(text, 0).bytes != text.size()) {
    content.fail("expected one character");
  }
  constexpr int64_t kMost = INT32_MAX;
  return std::make_unique<StripDecoder>(text, json.int_or("start", 0, 0, kMost),
                                        json.int_or("stop", 0, 0, kMost));
}

}  // namespace

std::unique_ptr<TokenDecoder> make_byte_decoder() {
  return std::make_unique<ByteLevelDecoder>();
}

std::unique_ptr<TokenDecoder> make_word_piece_decoder(std::string prefix, bool cleanup) {
  return std::make_unique<WordPieceDecoder>(std::move(prefix), cleanup);
}

std::unique_ptr<TokenDecoder> read_token_decoder(const Json& json) {
  const Json type = json.at("type");
  const std::string& name = type.as_string();
  if (name == "Sequence") return read_chain(json);
  if (name == "ByteLevel") return make_byte_decoder();
  if (name == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (name == "Fuse") return std::make_unique<Fuse>();
  if (name == "Strip") return read_strip(json);
  if (name == "Replace") return std::make_unique<ReplaceDecoder>(Replacement::from_json(json));
  if (name == "WordPiece") {
    return make_word_piece_decoder(json.string_or("prefix", "##"), json.bool_or("cleanup", true));
  }
  if (name == "Metaspace") return std::make_unique<MetaspaceDecoder>(read_metaspace(json));
  if (name == "BPEDecoder") {
    return std::make_unique<SuffixDecoder>(json.string_or("suffix", "</w>"));
  }
  type.fail(
      "expected Sequence, ByteLevel, ByteFallback, Fuse, Strip, Replace, WordPiece, Metaspace or "
      "BPEDecoder");
}

}  // namespace cleave::inline tokenizer
