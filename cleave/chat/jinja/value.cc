#include "cleave/chat/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "cleave/chat/jinja/object.h"

namespace cleave::inline chat::jinja {
namespace {

/// Limit of nested values. It bounds the recursion of functions that visit a value.
constexpr int kMaxDepth = 100;

constexpr uint64_t kBytesOfAStep = 64;  // compared or searched

/// Counts the comparison of two texts.
void charge_comparison(const std::string& a, const std::string& b, Budget& budget) {
  budget.step(std::min(a.size(), b.size()) / kBytesOfAStep);
}

int checked_depth(int below) {
  if (below >= kMaxDepth) fail(str("a value has more than ", kMaxDepth, " levels"));
  return below + 1;
}

bool equal_lists(const List& a, const List& b, Budget& budget) {
  if (a.is_tuple != b.is_tuple || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    if (!equal(a.items[i], b.items[i], budget)) return false;
  }
  return true;
}

bool equal_dicts(const Value& a, const Value& b, Budget& budget) {
  if (a.members().size() != b.members().size()) return false;
  return std::all_of(a.members().begin(), a.members().end(), [&](const auto& member) {
    const Value* other = find_member(b, member.first, budget);
    return other != nullptr && equal(member.second, *other, budget);
  });
}

Value number_of(const Json& json) {
  if (json.is_int()) return {json.as_int()};
  std::string text = json.dump();
  if (text.find_first_of(".eE") != std::string::npos) return {json.as_number()};
  return {LongInt{std::make_shared<const std::string>(std::move(text))}};
}

}  // namespace

Undefined::Undefined(std::string text) : what(std::move(text)) {
  constexpr size_t kMaxBytes = 120;
  if (what.size() <= kMaxBytes) return;
  size_t end = kMaxBytes;
  while (end > 0 && (static_cast<unsigned char>(what[end]) & 0xC0U) == 0x80U) --end;
  what.resize(end);
  what.shrink_to_fit();
}

void fail(const std::string& message) {
  throw Error(Code::kFormat, message);
}

void Budget::step(uint64_t count) {
  if (count > steps_) fail("the template takes too many steps");
  steps_ -= count;
}

void Budget::search(uint64_t text_bytes, uint64_t wanted_bytes) {
  step((1 + text_bytes / kBytesOfAStep) * (1 + wanted_bytes / kBytesOfAStep));
}

void Budget::bytes(uint64_t count) {
  if (count > bytes_) fail("the template needs too much memory");
  bytes_ -= count;
}

Value Value::text(std::string text) {
  return {std::make_shared<const std::string>(std::move(text))};
}

Value Value::list(std::vector<Value> items, bool is_tuple) {
  int below = 0;
  for (const Value& item : items) below = std::max(below, item.depth());
  return {std::make_shared<const List>(List{std::move(items), is_tuple, checked_depth(below)})};
}

Value Value::dict(std::vector<std::pair<Value, Value>> items) {
  int below = 0;
  for (const auto& [key, value] : items) below = std::max({below, key.depth(), value.depth()});
  return {std::make_shared<const Dict>(Dict{std::move(items), checked_depth(below)})};
}

Value Value::from_json(const Json& json) {
  switch (json.type()) {
    case Json::Type::kNull:
      return {nullptr};
    case Json::Type::kBool:
      return {json.as_bool()};
    case Json::Type::kNumber:
      return number_of(json);
    case Json::Type::kString:
      return text(json.as_string());
    case Json::Type::kArray: {
      std::vector<Value> items;
      for (size_t i = 0; i < json.size(); ++i) items.push_back(from_json(json.at(i)));
      return list(std::move(items));
    }
    case Json::Type::kObject:
      break;
  }
  std::vector<std::pair<Value, Value>> items;
  for (size_t i = 0; i < json.size(); ++i) {
    items.emplace_back(text(json.key(i)), from_json(json.at(i)));
  }
  return dict(std::move(items));
}

const std::vector<Value>& Value::items() const {
  return as<ListPtr>()->items;
}

const std::vector<std::pair<Value, Value>>& Value::members() const {
  return as<DictPtr>()->items;
}

double Value::number() const {
  return is<double>() ? as<double>() : static_cast<double>(integer());
}

int64_t Value::integer() const {
  return is<bool>() ? static_cast<int64_t>(as<bool>()) : as<int64_t>();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_integral()) return integer() != 0;
  if (is<double>()) return as<double>() != 0;
  if (is_text()) return !string().empty();
  if (is_list()) return !items().empty();
  if (is_dict()) return !members().empty();
  return true;
}

int Value::depth() const {
  if (is_list()) return as<ListPtr>()->depth;
  if (is_dict()) return as<DictPtr>()->depth;
  return is<MethodPtr>() ? checked_depth(as<MethodPtr>()->self.depth()) : 0;
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"undefined", "None", "bool",   "int",    "float", "str",
                                         "list",      "dict", "method", "object", "int"};
  if (is_list() && as<ListPtr>()->is_tuple) return "tuple";
  return kNames[data_.index()];
}

const Value* Arguments::find(size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [key, value] : named) {
    if (key == name) return &value;
  }
  return nullptr;
}

Value Arguments::get(size_t index, std::string_view name, const Value& fallback) const {
  const Value* found = find(index, name);
  return found != nullptr ? *found : fallback;
}

bool equal(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.is_text() && b.is_text()) {
    charge_comparison(a.string(), b.string(), budget);
    return a.string() == b.string();
  }
  if (a.is_list() && b.is_list()) return equal_lists(*a.as<ListPtr>(), *b.as<ListPtr>(), budget);
  if (a.is_dict() && b.is_dict()) return equal_dicts(a, b, budget);
  if (a.is<LongInt>() && b.is<LongInt>()) return *a.as<LongInt>().digits == *b.as<LongInt>().digits;
  if (a.is<Object*>() && b.is<Object*>()) return a.as<Object*>() == b.as<Object*>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b, Budget& budget) {
  budget.step();
  if (a.is_integral() && b.is_integral()) return a.integer() < b.integer();
  if (a.is_number() && b.is_number()) return a.number() < b.number();
  if (a.is_text() && b.is_text()) {
    charge_comparison(a.string(), b.string(), budget);
    return a.string() < b.string();
  }
  if (!a.is_list() || !b.is_list()) {
    fail(str("cannot compare values of types ", a.type_name(), " and ", b.type_name()));
  }
  const size_t both = std::min(a.items().size(), b.items().size());
  for (size_t i = 0; i < both; ++i) {
    if (!equal(a.items()[i], b.items()[i], budget)) return less(a.items()[i], b.items()[i], budget);
  }
  return a.items().size() < b.items().size();
}

const Value* find_member(const Value& dict, const Value& key, Budget& budget) {
  const auto& members = dict.members();
  budget.step(1 + members.size() / 16);
  for (const auto& [name, value] : members) {
    if (!name.is_text() || !key.is_text()) {
      if (equal(name, key, budget)) return &value;
    } else if (name.string().size() == key.string().size()) {
      charge_comparison(name.string(), key.string(), budget);
      if (name.string() == key.string()) return &value;
    }
  }
  return nullptr;
}

}  // namespace cleave::inline chat::jinja
