#include "cleave/parallel/plan.h"

#include <charconv>
#include <map>

#include "cleave/base/suggest.h"
#include "cleave/nn/subject.h"

namespace cleave::inline parallel {
namespace {

Placement placement_from(const Json& json) {
  const std::string& text = json.as_string();
  if (text == "replicate") return Replicate{};
  if (text.starts_with("shard(") && text.ends_with(")")) {
    int dim = 0;
    const char* last = text.data() + text.size() - 1;
    const auto [end, error] = std::from_chars(text.data() + 6, last, dim);
    if (error == std::errc() && end == last) return Shard{dim};
  }
  json.fail("expected \"replicate\" or \"shard(DIM)\"");
}

std::optional<Placement> placement_or_none(const Json& entry, std::string_view key) {
  if (!entry.has(key)) return std::nullopt;
  return placement_from(entry.at(key));
}

void check_keys(const Json& entry, bool prepares) {
  for (size_t i = 0; i < entry.size(); ++i) {
    const std::string& key = entry.key(i);
    if (key == "style" || key == "input" || key == "output") continue;
    if (key != "desired_input" && key != "desired_output") {
      entry.at(i).fail("unknown key; expected style, input, output, desired_input, desired_output");
    }
    if (!prepares) entry.at(i).fail("only the style \"prepare\" takes this key");
  }
}

Style style_from(const Json& entry) {
  const Json style = entry.at("style");
  const std::string& name = style.as_string();
  check_keys(entry, name == "prepare");
  const auto input = placement_or_none(entry, "input");
  const auto output = placement_or_none(entry, "output");
  if (name == "colwise") return Colwise{.input = input, .output = output};
  if (name == "rowwise") return Rowwise{.input = input, .output = output};
  if (name == "sequence") {
    if (input || output) style.fail("\"sequence\" takes no input and output; both are shard(1)");
    return SequenceParallel{};
  }
  if (name == "prepare") {
    return PrepareModuleInputOutput{
        .input = {.input = input, .desired = placement_or_none(entry, "desired_input")},
        .output = {.output = output, .desired = placement_or_none(entry, "desired_output")}};
  }
  style.fail("expected \"colwise\", \"rowwise\", \"sequence\" or \"prepare\"");
}

/// Checks that the style accepts the expected input placement.
void check_input(const std::string& path, const Style& style) {
  if (!style.input) return;
  const Placement& p = *style.input;
  const bool column = style.kind == Style::Kind::kColwise;
  const bool right =
      column ? p.is_replicate() || p.is_shard(1) : p.is_replicate() || p.is_shard(-1);
  CLEAVE_CHECK(right, Code::kShape, path, ": input=", p.describe(), " does not go with ",
               column ? "colwise; expected Replicate or Shard(1)"
                      : "rowwise; expected Shard(-1) or Replicate");
}

void apply(Layer& layer, const Style& style, const Axis& axis) {
  using Kind = Style::Kind;
  CLEAVE_CHECK(!layer.is_group(), Code::kShape, layer_name(layer.path()),
               " only groups layers and is never called, so a style has no effect on it; give the "
               "style to the layers below it");
  if (style.kind == Kind::kColwise || style.kind == Kind::kRowwise) {
    check_input(layer.path(), style);
  }
  if (style.input) layer.expect_input_layout(*style.input);
  if (style.output) layer.expect_output_layout(*style.output);
  if (style.desired_input) layer.set_input_layout(*style.desired_input);
  if (style.desired_output) layer.set_output_layout(*style.desired_output);
  if (style.kind == Kind::kColwise) layer.split_columns(axis);
  if (style.kind == Kind::kRowwise) layer.split_rows(axis);
}

/// The paths of a layer relative to `model`, as a plan spells them.
std::vector<std::string> paths_below(const Layer& model, const Layer& layer) {
  std::vector<std::string> below;
  for (const std::string& root : model.paths()) {
    for (const std::string& path : layer.paths()) {
      if (root.empty()) {
        below.push_back(path);
      } else if (path == root) {
        below.emplace_back();
      } else if (path.starts_with(root + ".")) {
        below.push_back(path.substr(root.size() + 1));
      }
    }
  }
  return below;
}

}  // namespace

Style::Style(Colwise s) : kind(Kind::kColwise), input(s.input), desired_output(s.output) {}
Style::Style(Rowwise s) : kind(Kind::kRowwise), input(s.input), desired_output(s.output) {}
Style::Style(SequenceParallel s) : kind(Kind::kSequence), desired_input(Shard{s.dim}) {}
Style::Style(PrepareModuleInput s) : input(s.input), desired_input(s.desired) {}
Style::Style(PrepareModuleOutput s) : output(s.output), desired_output(s.desired) {}
Style::Style(PrepareModuleInputOutput s)
    : input(s.input.input),
      desired_input(s.input.desired),
      output(s.output.output),
      desired_output(s.output.desired) {}

Plan plan_from_json(const Json& json) {
  Plan plan;
  for (size_t i = 0; i < json.size(); ++i) plan.emplace_back(json.key(i), style_from(json.at(i)));
  return plan;
}

Plan read_plan(const std::string& path) {
  const auto parse = [&] { return Json::parse_file(path); };
  return plan_from_json(parsed_as("a plan is a JSON object of module names and styles", parse));
}

void parallelize_module(Layer& model, const Axis& axis, const Plan& plan) {
  model.check_own_rank();
  model.name_tree();
  for (const auto& p : model.parameters()) p->replicate(axis);
  model.walk([&](Layer& layer) { layer.prepare_split(axis); });
  std::vector<std::string> names;
  model.walk([&](Layer& layer) {
    const auto below = paths_below(model, layer);
    names.insert(names.end(), below.begin(), below.end());
  });
  std::map<const Layer*, std::string> taken;
  for (const auto& [pattern, style] : plan) {
    bool matched = false;
    model.walk([&](Layer& layer) {
      if (!matches_any(pattern, paths_below(model, layer))) return;
      const auto [entry, is_new] = taken.emplace(&layer, pattern);
      CLEAVE_CHECK(is_new, Code::kShape, "plan keys '", entry->second, "' and '", pattern,
                   "' both match ",
                   layer.path().empty() ? "the root module" : "'" + layer.path() + "'",
                   "; each module may have one style");
      apply(layer, style, axis);
      matched = true;
    });
    CLEAVE_CHECK(matched, Code::kShape, "plan key '", pattern, "' matches no module",
                 did_you_mean(pattern, names));
  }
  model.walk([&](Layer& layer) { layer.check_split(axis); });
}

std::string describe_split(Layer& model) {
  std::string text;
  for (const auto& p : model.parameters()) {
    text += str(p->name(), "  [", list_text(p->shape()), "]  ", p->placement().describe(), "  [",
                list_text(p->local_shape()), "]\n");
  }
  return text;
}

}  // namespace cleave::inline parallel
