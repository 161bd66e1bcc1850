#pragma once
#include <string_view>

namespace cleave::inline report {

/// The text of page.html, which the build embeds.
extern const std::string_view kPageTemplate;

}  // namespace cleave::inline report
