#include "cleave/checkpoint/names.h"

#include <algorithm>
#include <charconv>

#include "cleave/base/str.h"

namespace cleave::inline checkpoint {
namespace {

constexpr std::string_view kStep = "step_";
constexpr size_t kDigits = 8;

}  // namespace

std::string state_name(std::string_view part, std::string_view parameter) {
  return str(part, ".", parameter);
}

std::string checkpoint_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return str(kStep, std::string(kDigits - std::min(kDigits, digits.size()), '0'), digits);
}

std::optional<int64_t> checkpoint_step(std::string_view name) {
  if (!name.starts_with(kStep)) return std::nullopt;
  const std::string_view digits = name.substr(kStep.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

}  // namespace cleave::inline checkpoint
