#pragma once
#include <string_view>

namespace cleave::inline report {

/// The text of replay.html, which the build embeds.
extern const std::string_view kReplayTemplate;

}  // namespace cleave::inline report
