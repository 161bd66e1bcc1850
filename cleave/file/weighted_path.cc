#include "cleave/file/weighted_path.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "cleave/base/error.h"

namespace cleave::inline file {

WeightedPath weighted_path(const std::string& text) {
  std::error_code ignored;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || std::filesystem::exists(text, ignored)) return {.path = text};
  const char* end = text.data() + text.size();
  double weight = 0;
  const auto [rest, error] = std::from_chars(text.data() + colon + 1, end, weight);
  if (rest != end || rest == text.data() + colon + 1) return {.path = text};
  CLEAVE_CHECK(error == std::errc() && std::isfinite(weight) && weight > 0, Code::kUsage, text,
               ": the weight is ", text.substr(colon + 1), "; expected a number above 0");
  return {.path = text.substr(0, colon), .weight = weight};
}

std::vector<WeightedPath> weighted_paths(const std::vector<std::string>& texts) {
  std::vector<WeightedPath> found;
  for (const std::string& text : texts) {
    found.push_back(weighted_path(text));
    CLEAVE_CHECK(found.front().weight.has_value() == found.back().weight.has_value(), Code::kUsage,
                 found.front().weight ? text : texts.front(), " has no weight, ",
                 found.front().weight ? texts.front() : text,
                 " has one; give all files a weight (FILE:WEIGHT), or none");
  }
  return found;
}

}  // namespace cleave::inline file
