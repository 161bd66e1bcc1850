#include <charconv>
#include <optional>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"
#include "cleave/parallel/plan.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {
namespace {

constexpr std::string_view kForm =
    "expected GLOB:SETTING=VALUE,... with the settings lr-factor and weight-decay";

/// One group as typed.
struct TypedGroup {
  std::string text;  ///< for messages
  std::string glob;
  std::optional<double> lr_factor{}, weight_decay{};
};

void read_setting(TypedGroup& group, std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string_view name = setting.substr(0, equals);
  CLEAVE_CHECK(equals != std::string_view::npos && (name == "lr-factor" || name == "weight-decay"),
               Code::kUsage, "--param-group ", group.text, ": '", setting, "' is not a setting; ",
               kForm);
  const std::string_view text = setting.substr(equals + 1);
  constexpr double kMost = 1000;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  CLEAVE_CHECK(
      error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= kMost,
      Code::kUsage, "--param-group ", group.text, ": ", name, " is '", text,
      "'; expected a number from 0 to ", kMost);
  (name == "lr-factor" ? group.lr_factor : group.weight_decay) = value;
}

TypedGroup read_group(const std::string& text) {
  const size_t colon = text.rfind(':');
  CLEAVE_CHECK(colon != std::string::npos && colon > 0, Code::kUsage, "--param-group ", text, ": ",
               kForm);
  TypedGroup group{.text = text, .glob = text.substr(0, colon)};
  std::string_view rest = std::string_view(text).substr(colon + 1);
  for (;;) {
    const size_t comma = rest.find(',');
    read_setting(group, rest.substr(0, comma));
    if (comma == std::string_view::npos) return group;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace

bool matches_parts(const std::string& glob, const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end != std::string::npos) {
      end = name.find('.', end + 1);
      if (matches(glob, std::string_view(name).substr(begin, end - begin))) return true;
    }
    const size_t dot = name.find('.', begin);
    if (dot == std::string::npos) break;
    begin = dot + 1;
  }
  return false;
}

OptimizerOptions::OwnSettings parameter_groups(const std::vector<std::string>& groups,
                                               Model& model) {
  OptimizerOptions::OwnSettings own;
  std::vector<std::string> names;
  const Parameters all = model.parameters();
  const Parameters trained = trained_of(all);
  for (const auto& p : trained) names.push_back(p->name());
  for (const std::string& text : groups) {
    const TypedGroup group = read_group(text);
    bool has_match = false;
    for (const std::string& name : names) {
      if (!matches_parts(group.glob, name)) continue;
      has_match = true;
      auto& settings = own[name];
      if (group.lr_factor) settings.lr_factor = *group.lr_factor;
      if (group.weight_decay) settings.weight_decay = group.weight_decay;
    }
    CLEAVE_CHECK(has_match, Code::kUsage, "--param-group ", text, ": no ",
                 trained.size() < all.size() ? "trained " : "", "parameter matches ", group.glob,
                 did_you_mean(group.glob, names));
  }
  return own;
}

}  // namespace cleave::inline train
