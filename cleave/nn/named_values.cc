#include "cleave/nn/named_values.h"

#include <utility>

namespace cleave::inline nn {

NamedValues NamedValues::with(const std::string& name, DTensor value) const {
  Map map = values_ ? *values_ : Map();
  map.insert_or_assign(name, std::move(value));
  NamedValues out;
  out.values_ = std::make_shared<const Map>(std::move(map));
  return out;
}

bool NamedValues::has(const std::string& name) const {
  return values_ && values_->contains(name);
}

const DTensor& NamedValues::at(const std::string& name) const {
  if (has(name)) return values_->find(name)->second;
  std::vector<std::string> names;
  if (values_) {
    for (const auto& entry : *values_) names.push_back(entry.first);
  }
  throw Error(
      Code::kUsage,
      str("the context has no value '", name, "'", names.empty() ? "" : "; it has ",
          list_text(names), "; add it to the micro-batch's context, or name an earlier layer's ",
          "output with set_output_name"));
}

std::vector<Tensor> NamedValues::locals() const {
  std::vector<Tensor> out;
  if (!values_) return out;
  for (const auto& entry : *values_) out.push_back(entry.second.local());
  return out;
}

NamedValues NamedValues::with_locals(const std::vector<Tensor>& locals) const {
  if (!values_) return {};
  Map map;
  auto local = locals.begin();
  for (const auto& [name, value] : *values_) map.emplace(name, value.with(*local++));
  NamedValues out;
  out.values_ = std::make_shared<const Map>(std::move(map));
  return out;
}

}  // namespace cleave::inline nn
