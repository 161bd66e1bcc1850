// The filters over lists and dicts.
#include <algorithm>
#include <array>

#include "cleave/chat/jinja/interpreter.h"
#include "cleave/chat/jinja/string_ops.h"

namespace cleave::inline chat::jinja {
namespace {

/// The attribute of a value by a path such as "function.name" or "0"; an integer is an index.
Value attribute_at(Interpreter& run, Value value, const Value& path) {
  if (path.is_integral()) return run.item(value, path);
  if (!path.is_text()) fail("an attribute must be given by its name");
  for (const std::string_view part : split(path.string(), std::string_view("."), -1, false)) {
    const auto index = parse_integer(part, 10);
    value = run.item(value, index && *index >= 0 ? Value(*index) : run.text(std::string(part)));
  }
  return value;
}

/// A copy of a filter's arguments, which it passes on to another filter. The copy counts toward the
/// memory limit, because filters may be nested.
Arguments charged_copy(const FilterCall& call) {
  const Arguments& from = call.arguments;
  call.run.budget().bytes((from.values.size() + from.named.size()) * sizeof(Value));
  return from;
}

/// For sort, unique, min and max: strings compare without case unless case_sensitive.
Value sort_key(const FilterCall& call, const Value& value, const Value& path, bool keeps_case) {
  Value key = path.is_none() ? value : attribute_at(call.run, value, path);
  return key.is_text() && !keeps_case ? call.run.text(lower(key.string())) : key;
}

/// The elements with their sort keys, as in "sort(attribute='name')".
std::vector<std::pair<Value, Value>> keyed(const FilterCall& call, size_t case_index,
                                           size_t path_index) {
  const bool keeps_case = call.argument(case_index, "case_sensitive", Value(false)).truth();
  const Value path = call.argument(path_index, "attribute", Value(nullptr));
  std::vector<std::pair<Value, Value>> out;
  for (const Value& one : call.run.elements(call.subject)) {
    out.emplace_back(sort_key(call, one, path, keeps_case), one);
  }
  return out;
}

Value join(const FilterCall& call) {
  const std::string separator = to_text(call.argument(0, "d", Value::text("")), call.run.budget());
  const Value path = call.argument(1, "attribute", Value(nullptr));
  std::string out;
  bool is_first = true;
  for (const Value& one : call.run.elements(call.subject)) {
    if (!is_first) out += separator;
    is_first = false;
    const std::string text =
        to_text(path.is_none() ? one : attribute_at(call.run, one, path), call.run.budget());
    call.run.budget().bytes(text.size() + separator.size());
    out += text;
  }
  return Value::text(std::move(out));
}

Value first(const FilterCall& call) {
  const std::vector<Value> all = call.run.elements(call.subject);
  return all.empty() ? Value(Undefined{"there is no first element"}) : all.front();
}

Value last(const FilterCall& call) {
  const std::vector<Value> all = call.run.elements(call.subject);
  return all.empty() ? Value(Undefined{"there is no last element"}) : all.back();
}

Value list(const FilterCall& call) {
  return call.run.list(call.run.elements(call.subject));
}

Value reverse(const FilterCall& call) {
  std::vector<Value> all = call.run.elements(call.subject);
  std::reverse(all.begin(), all.end());
  if (!call.subject.is_text()) return call.run.list(std::move(all));
  std::string out;
  for (const Value& one : all) out += one.string();
  return call.run.text(std::move(out));
}

Value pair_of(Interpreter& run, const std::pair<Value, Value>& member) {
  return run.list({member.first, member.second}, /*is_tuple=*/true);
}

Value items(const FilterCall& call) {
  std::vector<Value> out;
  if (!call.subject.is_undefined()) {
    if (!call.subject.is_dict()) fail("items expects a dict");
    for (const auto& member : call.subject.members()) out.push_back(pair_of(call.run, member));
  }
  return call.run.list(std::move(out));
}

/// The list of the second values, in the order of the first ones, their keys; values with equal
/// keys keep their order.
Value in_order_of_keys(const FilterCall& call, std::vector<std::pair<Value, Value>> all,
                       bool reversed) {
  std::stable_sort(all.begin(), all.end(), [&](const auto& a, const auto& b) {
    return less(reversed ? b.first : a.first, reversed ? a.first : b.first, call.run.budget());
  });
  std::vector<Value> out;
  out.reserve(all.size());
  for (auto& [key, value] : all) out.push_back(std::move(value));
  return call.run.list(std::move(out));
}

Value dictsort(const FilterCall& call) {
  const bool keeps_case = call.argument(0, "case_sensitive", Value(false)).truth();
  const bool by_value =
      to_text(call.argument(1, "by", Value::text("key")), call.run.budget()) == "value";
  const bool reversed = call.argument(2, "reverse", Value(false)).truth();
  if (!call.subject.is_dict()) fail("dictsort expects a dict");
  std::vector<std::pair<Value, Value>> all;
  for (const auto& member : call.subject.members()) {
    all.emplace_back(
        sort_key(call, by_value ? member.second : member.first, Value(nullptr), keeps_case),
        pair_of(call.run, member));
  }
  return in_order_of_keys(call, std::move(all), reversed);
}

Value sort(const FilterCall& call) {
  const bool reversed = call.argument(0, "reverse", Value(false)).truth();
  return in_order_of_keys(call, keyed(call, 1, 2), reversed);
}

Value unique(const FilterCall& call) {
  std::vector<Value> keys;
  std::vector<Value> out;
  for (auto& [key, value] : keyed(call, 0, 1)) {
    const bool is_known = std::any_of(
        keys.begin(), keys.end(),
        [&key = key, &call](const Value& other) { return equal(key, other, call.run.budget()); });
    if (is_known) continue;
    keys.push_back(std::move(key));
    out.push_back(std::move(value));
  }
  return call.run.list(std::move(out));
}

template <bool wants_least>
Value extreme(const FilterCall& call) {
  auto all = keyed(call, 0, 1);
  if (all.empty()) return Undefined{"there is no least or greatest element"};
  const std::pair<Value, Value>* best = &all.front();
  for (const auto& one : all) {
    const bool is_better = wants_least ? less(one.first, best->first, call.run.budget())
                                       : less(best->first, one.first, call.run.budget());
    if (is_better) best = &one;
  }
  return best->second;
}

Value sum(const FilterCall& call) {
  const Value path = call.argument(0, "attribute", Value(nullptr));
  Value out = call.argument(1, "start", Value(int64_t{0}));
  for (const Value& one : call.run.elements(call.subject)) {
    out = operate(call.run, "+", out, path.is_none() ? one : attribute_at(call.run, one, path));
  }
  return out;
}

Value map(const FilterCall& call) {
  const Value* path = call.arguments.find(call.arguments.values.size(), "attribute");
  const Value* fallback = call.arguments.find(call.arguments.values.size(), "default");
  Arguments rest = charged_copy(call);
  std::string name;
  if (path == nullptr) {
    if (rest.values.empty() || !rest.values[0].is_text())
      fail("map expects a filter or attribute=");
    name = rest.values[0].string();
    rest.values.erase(rest.values.begin());
  }
  std::vector<Value> out;
  if (!call.subject.truth()) return call.run.list({});  // none is allowed
  for (const Value& one : call.run.elements(call.subject)) {
    Value value =
        path != nullptr ? attribute_at(call.run, one, *path) : call.run.filter(name, one, rest);
    if (path != nullptr && fallback != nullptr && value.is_undefined()) value = *fallback;
    out.push_back(std::move(value));
  }
  return call.run.list(std::move(out));
}

/// What select() tests.
enum class Tested : uint8_t { kValue, kAttribute };

/// select, reject, selectattr and rejectattr: the elements for which a test holds, or not. Without
/// a test, the value itself decides.
template <bool keeps, Tested tested>
Value select(const FilterCall& call) {
  constexpr bool has_attribute = tested == Tested::kAttribute;
  Arguments rest = charged_copy(call);
  const auto take = [&rest](std::string_view what) {
    if (rest.values.empty()) fail(str("the filter expects ", what));
    Value value = rest.values.front();
    rest.values.erase(rest.values.begin());
    return value;
  };
  const Value path = has_attribute ? take("an attribute") : Value(nullptr);
  const bool has_test = !rest.values.empty();
  const std::string name = has_test ? to_text(take("a test"), call.run.budget()) : "";
  std::vector<Value> out;
  if (!call.subject.truth()) return call.run.list({});  // none is allowed
  for (const Value& one : call.run.elements(call.subject)) {
    const Value value = has_attribute ? attribute_at(call.run, one, path) : one;
    if ((has_test ? call.run.test(name, value, rest) : value.truth()) == keeps) out.push_back(one);
  }
  return call.run.list(std::move(out));
}

using Entry = std::pair<std::string_view, FilterBody>;

constexpr std::array kFilters{
    Entry{"dictsort", dictsort},
    Entry{"first", first},
    Entry{"items", items},
    Entry{"join", join},
    Entry{"last", last},
    Entry{"list", list},
    Entry{"map", map},
    Entry{"max", extreme<false>},
    Entry{"min", extreme<true>},
    Entry{"reject", select<false, Tested::kValue>},
    Entry{"rejectattr", select<false, Tested::kAttribute>},
    Entry{"reverse", reverse},
    Entry{"select", select<true, Tested::kValue>},
    Entry{"selectattr", select<true, Tested::kAttribute>},
    Entry{"sort", sort},
    Entry{"sum", sum},
    Entry{"unique", unique},
};

}  // namespace

FilterBody find_list_filter(std::string_view name) {
  const auto* found = std::find_if(kFilters.begin(), kFilters.end(),
                                   [name](const Entry& entry) { return entry.first == name; });
  return found == kFilters.end() ? nullptr : found->second;
}

}  // namespace cleave::inline chat::jinja
