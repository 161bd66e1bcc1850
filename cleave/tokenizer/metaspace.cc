#include "cleave/tokenizer/metaspace.h"

#include "cleave/text/utf8.h"

namespace cleave {
namespace {

Metaspace::Prepend read_prepend(const Json& json) {
  const std::string& scheme = json.as_string();
  if (scheme == "always") return Metaspace::Prepend::kAlways;
  if (scheme == "first") return Metaspace::Prepend::kFirst;
  if (scheme == "never") return Metaspace::Prepend::kNever;
  json.fail("expected always, first or never");
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

}  // namespace cleave
