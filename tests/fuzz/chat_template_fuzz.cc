// Random bytes as a chat template: it prints text or is refused with Error(kFormat) that names the
// source; its limits bound time and memory; the marked parts lie in the text, in order.
#include <string>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/chat/jinja/template.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;
using cleave::jinja::Value;

std::vector<std::pair<std::string, Value>> variables() {
  const auto messages = cleave::Json::parse(
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": " a\n"},
          {"role": "assistant", "content": "b", "tool_calls": [{"id": 1.5, "x": null}]}])",
      "messages");
  return {{"messages", Value::from_json(messages)},
          {"tools", Value(nullptr)},
          {"bos_token", Value::text("<s>")},
          {"add_generation_prompt", Value(true)}};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr cleave::jinja::RenderOptions kLimits{.max_steps = 200'000, .max_bytes = 4'000'000};
  try {
    const cleave::jinja::Template parsed(cleave::fuzz::text_of(data, size), "fuzz");
    const cleave::jinja::Rendered out = parsed.render(variables(), kLimits);
    require(out.text.size() <= kLimits.max_bytes);
    for (const auto& [begin, end] : out.generated) require(begin <= end && end <= out.text.size());
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
    require(std::string(error.what()).starts_with("fuzz: "));
  }
  return 0;
}
