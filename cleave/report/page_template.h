#pragma once
#include <string_view>

namespace cleave {

/// The text of page.html, which the build embeds.
extern const std::string_view kPageTemplate;

}  // namespace cleave
