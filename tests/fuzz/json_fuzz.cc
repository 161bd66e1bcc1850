// Random bytes as JSON: a refusal is Error(kFormat); an accepted document can be walked, with every
// value inside the text.
#include <cstdint>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/text/json.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

void walk(const cleave::Json& value, size_t text_bytes) {
  require(value.offset() < text_bytes);
  switch (value.type()) {
    case cleave::Json::Type::kArray:
    case cleave::Json::Type::kObject:
      for (size_t i = 0; i < value.size(); ++i) walk(value.at(i), text_bytes);
      break;
    case cleave::Json::Type::kString:
      require(value.as_string().size() <= text_bytes);
      break;
    case cleave::Json::Type::kNumber:
      if (value.is_int()) require(value.as_int() == value.as_int(value.as_int(), value.as_int()));
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = cleave::fuzz::text_of(data, size);
  try {
    walk(cleave::Json::parse(text, "input"), size);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
