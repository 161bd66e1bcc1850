#pragma once
#include <string_view>

namespace cleave::inline planner {

/// The text of plan_page.html, which the build embeds.
extern const std::string_view kPlanPageTemplate;

}  // namespace cleave::inline planner
