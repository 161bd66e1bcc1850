#include "cleave/parallel/plan.h"

#include <charconv>
#include <map>

#include "cleave/base/suggest.h"
#include "cleave/parallel/pattern.h"

namespace cleave {
namespace {

Placement layout_from(const Json& json) {
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

std::optional<Placement> layout_or_none(const Json& entry, std::string_view key) {
  if (!entry.has(key)) return std::nullopt;
  return layout_from(entry.at(key));
}

Style style_from(const Json& entry) {
  for (size_t i = 0; i < entry.size(); ++i) {
    const std::string& key = entry.key(i);
    if (key != "style" && key != "input" && key != "output") {
      entry.at(i).fail("unknown key; expected style, input or output");
    }
  }
  const Json style = entry.at("style");
  const auto input = layout_or_none(entry, "input");
  const auto output = layout_or_none(entry, "output");
  if (style.as_string() == "colwise") return Colwise{.input = input, .output = output};
  if (style.as_string() == "rowwise") return Rowwise{.input = input, .output = output};
  style.fail("expected \"colwise\" or \"rowwise\"");
}

/// A stated input layout must be what the style makes the layer take.
void check_input(const std::string& path, const Style& style) {
  if (!style.input()) return;
  const Placement& p = *style.input();
  const bool column = style.kind() == Style::Kind::kColwise;
  const bool right =
      column ? p.is_replicate() || p.is_shard(1) : p.is_replicate() || p.is_shard(-1);
  CLEAVE_CHECK(right, Code::kShape, path, ": input=", p.describe(), " does not go with ",
               column ? "colwise; expected Replicate or Shard(1)"
                      : "rowwise; expected Shard(-1) or Replicate");
}

void apply(Layer& layer, const Style& style, const Axis& axis) {
  check_input(layer.path(), style);
  if (style.output()) layer.set_output_layout(*style.output());
  if (style.kind() == Style::Kind::kColwise) {
    layer.split_columns(axis);
  } else {
    layer.split_rows(axis);
  }
}

}  // namespace

Plan plan_from_json(const Json& json) {
  Plan plan;
  for (size_t i = 0; i < json.size(); ++i) plan.emplace_back(json.key(i), style_from(json.at(i)));
  return plan;
}

void parallelize_module(Layer& model, const Axis& axis, const Plan& plan) {
  model.name_tree();
  for (const auto& p : model.parameters()) p->replicate(axis);
  model.walk([&](Layer& layer) { layer.prepare_split(axis); });
  std::vector<std::string> names;
  model.walk(
      [&](Layer& layer) { names.insert(names.end(), layer.paths().begin(), layer.paths().end()); });
  std::map<const Layer*, std::string> taken;
  for (const auto& [pattern, style] : plan) {
    bool matched = false;
    model.walk([&](Layer& layer) {
      if (!matches_any(pattern, layer.paths())) return;
      const auto [entry, is_new] = taken.emplace(&layer, pattern);
      CLEAVE_CHECK(is_new, Code::kShape, "plan keys '", entry->second, "' and '", pattern,
                   "' both match '", layer.path(), "'; each module may have one style");
      apply(layer, style, axis);
      matched = true;
    });
    CLEAVE_CHECK(matched, Code::kShape, "plan key '", pattern, "' matches no module",
                 did_you_mean(pattern, names));
  }
  model.walk([&](Layer& layer) { layer.check_split(axis); });
}

}  // namespace cleave
