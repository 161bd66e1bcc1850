#include "cleave/chat/jinja/template.h"

#include "cleave/base/hash.h"
#include "cleave/chat/jinja/interpreter.h"

namespace cleave::inline chat::jinja {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

/// Runs `action`; its errors name the source.
template <class Action>
auto named(const std::string& source, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    throw Error(error.code(), str(source, ": ", error.what()));
  }
}

}  // namespace

Template::Template(std::string_view text, std::string source)
    : source_(std::move(source)), fingerprint_(hash_bytes(text)) {
  syntax_ = named(source_, [&] {
    if (text.size() > kMaxTemplateBytes) {
      fail(str("the template has ", text.size(), " bytes; at most ", kMaxTemplateBytes,
               " are read"));
    }
    return std::make_unique<const Syntax>(parse(text));
  });
}

Template::~Template() = default;
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;

Rendered Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                          const RenderOptions& options) const {
  return named(source_, [&] { return Interpreter(*syntax_, options).run(variables); });
}

bool Template::has_generation() const {
  return syntax_->has_generation;
}

}  // namespace cleave::inline chat::jinja
