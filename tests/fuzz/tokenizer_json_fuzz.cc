// Random bytes as tokenizer.json: a refusal is Error(kFormat); an accepted tokenizer encodes every
// text to ids of its vocabulary, without an exception, and decodes them to valid UTF-8.
//
// The input may end in a NUL and another text to encode.
#include <array>
#include <cstdint>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/pipeline.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

constexpr std::array<std::string_view, 6> kTexts{
    "ab <s>\xFFxx",
    "  \t\r\n Hello, it's 1234!",
    "e\xCC\x81\xE4\xBD\xA0\xF0\x9F\x98\x80",
    "\xED\xA0\x80\xF4\x90\x80\x80\xC0",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    std::string_view("\0a\0", 3)};

void check_text(const cleave::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text);
  for (const int64_t id : ids) require(id >= 0 && id < tokenizer.vocab_size());
  const std::string back = tokenizer.decode(ids);
  require(cleave::first_bad_utf8(back) == back.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input = cleave::fuzz::text_of(data, size);
  const std::string_view json = input.substr(0, input.find('\0'));
  std::unique_ptr<cleave::Tokenizer> tokenizer;
  try {
    cleave::JsonLimits limits;
    tokenizer =
        cleave::make_pipeline(cleave::read_pipeline(cleave::Json::parse(json, "input", limits)));
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
    return 0;
  }
  for (const std::string_view text : kTexts) check_text(*tokenizer, text);
  if (json.size() < input.size()) check_text(*tokenizer, input.substr(json.size() + 1));
  return 0;
}
