// The methods of strings, lists and dicts.
#include <algorithm>
#include <array>
#include <utility>

#include "cleave/chat/jinja/interpreter.h"
#include "cleave/chat/jinja/string_ops.h"
#include "cleave/text/utf8.h"

namespace cleave::inline chat::jinja {
namespace {

/// A call of a method.
struct Call {
  Interpreter& run;
  const Value& self;
  const Arguments& arguments;
  const std::string& name;

  [[nodiscard]] const std::string& self_text() const { return self.string(); }
  [[nodiscard]] Value argument(size_t index, std::string_view key, const Value& fallback) const {
    return arguments.get(index, key, fallback);
  }
  /// A string argument.
  [[nodiscard]] std::string text(size_t index, std::string_view key) const {
    const Value* value = arguments.find(index, key);
    if (value == nullptr || !value->is_text()) {
      fail(str(name, "() expects a string as argument ", index + 1));
    }
    return value->string();
  }
  [[nodiscard]] std::optional<std::string> text_or_none(size_t index, std::string_view key) const {
    const Value* value = arguments.find(index, key);
    if (value == nullptr || value->is_none()) return std::nullopt;
    return text(index, key);
  }
  [[nodiscard]] int64_t integer(size_t index, std::string_view key, int64_t fallback) const {
    const Value* value = arguments.find(index, key);
    if (value == nullptr) return fallback;
    if (!value->is_integral()) fail(str(name, "() expects an integer as argument ", index + 1));
    return value->integer();
  }
};

using Body = Value (*)(const Call& call);
using Entry = std::pair<std::string_view, Body>;

template <Side side>
Value strip_method(const Call& call) {
  const auto set = call.text_or_none(0, "chars");
  return call.run.text(std::string(
      strip(call.self_text(), set ? std::optional<std::string_view>(*set) : std::nullopt, side)));
}

Value texts(const Call& call, const std::vector<std::string_view>& parts) {
  std::vector<Value> out;
  out.reserve(parts.size());
  for (const std::string_view part : parts) out.push_back(call.run.text(std::string(part)));
  return call.run.list(std::move(out));
}

template <bool from_right>
Value split_method(const Call& call) {
  const auto separator = call.text_or_none(0, "sep");
  if (separator && separator->empty()) fail("split() expects a separator that is not empty");
  call.run.budget().bytes(call.self_text().size() * sizeof(std::string_view) /
                          (separator ? separator->size() : 2));
  return texts(call, split(call.self_text(),
                           separator ? std::optional<std::string_view>(*separator) : std::nullopt,
                           call.integer(1, "maxsplit", -1), from_right));
}

Value split_lines_method(const Call& call) {
  call.run.budget().bytes(call.self_text().size() * sizeof(std::string_view));
  return texts(call, split_lines(call.self_text()));
}

/// startswith() and endswith().
template <bool at_end>
Value has_end(const Call& call) {
  const Value wanted = call.argument(0, "prefix", {});
  const std::vector<Value> all = wanted.is_list() ? wanted.items() : std::vector<Value>{wanted};
  const std::string& text = call.self_text();
  for (const Value& one : all) {
    if (!one.is_text()) fail(str(call.name, "() expects a string or a tuple of strings"));
    call.run.budget().step(1 + one.string().size() / 64);
    if (at_end ? text.ends_with(one.string()) : text.starts_with(one.string())) return Value(true);
  }
  return Value(false);
}

template <bool at_end>
Value without_end(const Call& call) {
  const std::string end = call.text(0, "prefix");
  std::string_view text = call.self_text();
  if (at_end && text.ends_with(end)) text.remove_suffix(end.size());
  if (!at_end && text.starts_with(end)) text.remove_prefix(end.size());
  return call.run.text(std::string(text));
}

template <std::string (*convert)(std::string_view)>
Value converted(const Call& call) {
  return call.run.text(convert(call.self_text()));
}

Value title_method(const Call& call) {
  return call.run.text(title(call.self_text(), [](char32_t c) { return !is_letter(c); }));
}

Value replace_method(const Call& call) {
  return call.run.text(
      replaced(call.run.budget(), call.self_text(),
               {call.text(0, "old"), call.text(1, "new"), call.integer(2, "count", -1)}));
}

template <bool from_right>
Value find_method(const Call& call) {
  if (call.arguments.values.size() > 1) fail(str(call.name, "() takes one argument here"));
  const std::string& text = call.self_text();
  const std::string wanted = call.text(0, "sub");
  const size_t at = from_right ? text.rfind(wanted) : text.find(wanted);
  if (at != std::string::npos) return Value(num_characters(std::string_view(text).substr(0, at)));
  if (call.name == "index") fail("index() does not find the string");
  return Value(int64_t{-1});
}

Value count_method(const Call& call) {
  const std::string wanted = call.text(0, "sub");
  if (wanted.empty()) return Value(num_characters(call.self_text()) + 1);
  const std::string& text = call.self_text();
  int64_t count = 0;
  for (size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + wanted.size())) {
    ++count;
  }
  return Value(count);
}

Value join_method(const Call& call) {
  std::string out;
  bool is_first = true;
  for (const Value& one : call.run.elements(call.argument(0, "iterable", {}))) {
    if (!one.is_text()) fail("join() expects strings");
    if (!is_first) out += call.self_text();
    is_first = false;
    call.run.budget().bytes(one.string().size() + call.self_text().size());
    out += one.string();
  }
  return Value::text(std::move(out));
}

template <bool (*is_in)(char32_t)>
Value all_in(const Call& call) {
  const std::string& text = call.self_text();
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = next_code_point(text, at);
    if (!is_in(c.value)) return Value(false);
    at += c.bytes;
  }
  return Value(!text.empty());
}

bool is_space(char32_t c) {
  std::string one;
  append_utf8(one, c);
  return strip(one, std::nullopt).empty();
}

bool is_ascii_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

bool is_letter_or_digit(char32_t c) {
  return is_letter(c) || is_ascii_digit(c);
}

/// str.format() with {}, {0} and {name}.
Value format_method(const Call& call) {
  const std::string_view text = call.self_text();
  std::string out;
  size_t automatic = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '{' && text[i] != '}') {
      out.push_back(text[i]);
      continue;
    }
    if (i + 1 < text.size() && text[i + 1] == text[i]) {
      out.push_back(text[i++]);
      continue;
    }
    const size_t end = text[i] == '{' ? text.find('}', i) : std::string_view::npos;
    if (end == std::string_view::npos) fail("format() has a single { or }; double it");
    const std::string_view field = text.substr(i + 1, end - i - 1);
    const auto index =
        field.empty() ? std::optional<int64_t>(automatic++) : parse_integer(field, 10);
    const Value* value = call.arguments.find(
        index && *index >= 0 ? static_cast<size_t>(*index) : call.arguments.values.size(), field);
    if (value == nullptr) fail(str("format() has no argument for '{", field, "}'"));
    call.run.budget().step(1 + call.arguments.named.size() / 16);
    const std::string part = to_text(*value, call.run.budget());
    call.run.budget().bytes(part.size());
    out += part;
    i = end;
  }
  return call.run.text(std::move(out));
}

Value position(const Call& call) {
  const Value wanted = call.argument(0, "value", {});
  int64_t count = 0;
  for (size_t i = 0; i < call.self.items().size(); ++i) {
    if (!equal(call.self.items()[i], wanted, call.run.budget())) continue;
    if (call.name == "index") return Value(static_cast<int64_t>(i));
    ++count;
  }
  if (call.name == "index") fail("index() does not find the value");
  return Value(count);
}

Value get_method(const Call& call) {
  const Value* member = find_member(call.self, call.argument(0, "key", {}), call.run.budget());
  return member != nullptr ? *member : call.argument(1, "default", Value(nullptr));
}

Value members(const Call& call) {
  std::vector<Value> out;
  for (const auto& [key, value] : call.self.members()) {
    out.push_back(call.name == "keys"     ? key
                  : call.name == "values" ? value
                                          : call.run.list({key, value}, /*is_tuple=*/true));
  }
  return call.run.list(std::move(out));
}

constexpr std::array kTextMethods{
    Entry{"capitalize", converted<capitalize>},
    Entry{"count", count_method},
    Entry{"endswith", has_end<true>},
    Entry{"find", find_method<false>},
    Entry{"format", format_method},
    Entry{"index", find_method<false>},
    Entry{"isalnum", all_in<is_letter_or_digit>},
    Entry{"isalpha", all_in<is_letter>},
    Entry{"isdigit", all_in<is_ascii_digit>},
    Entry{"isspace", all_in<is_space>},
    Entry{"join", join_method},
    Entry{"lower", converted<lower>},
    Entry{"lstrip", strip_method<Side::kLeft>},
    Entry{"removeprefix", without_end<false>},
    Entry{"removesuffix", without_end<true>},
    Entry{"replace", replace_method},
    Entry{"rfind", find_method<true>},
    Entry{"rsplit", split_method<true>},
    Entry{"rstrip", strip_method<Side::kRight>},
    Entry{"split", split_method<false>},
    Entry{"splitlines", split_lines_method},
    Entry{"startswith", has_end<false>},
    Entry{"strip", strip_method<Side::kBoth>},
    Entry{"title", title_method},
    Entry{"upper", converted<upper>},
};
constexpr std::array kListMethods{Entry{"count", position}, Entry{"index", position}};
constexpr std::array kDictMethods{Entry{"get", get_method}, Entry{"items", members},
                                  Entry{"keys", members}, Entry{"values", members}};

template <size_t size>
Body find_in(const std::array<Entry, size>& table, std::string_view name) {
  const auto* found = std::find_if(table.begin(), table.end(),
                                   [name](const Entry& entry) { return entry.first == name; });
  return found == table.end() ? nullptr : found->second;
}

Body find_method(const Value& subject, std::string_view name) {
  if (subject.is_text()) return find_in(kTextMethods, name);
  if (subject.is_list()) return find_in(kListMethods, name);
  return subject.is_dict() ? find_in(kDictMethods, name) : nullptr;
}

}  // namespace

bool has_method(const Value& subject, std::string_view name) {
  return find_method(subject, name) != nullptr;
}

void charge_searches(Budget& budget, const Value& subject, const Arguments& arguments) {
  const uint64_t bytes = subject.is_text() ? subject.string().size() : 0;
  budget.step(1 + bytes / 16 + arguments.named.size() / 4);
  for (const Value& one : arguments.values) {
    if (one.is_text()) budget.search(bytes, one.string().size());
  }
  for (const auto& [name, one] : arguments.named) {
    if (one.is_text()) budget.search(bytes, one.string().size());
  }
}

Value call_method(Interpreter& run, const Method& method, Arguments& arguments) {
  charge_searches(run.budget(), method.self, arguments);
  return find_method(method.self, method.name)({run, method.self, arguments, method.name});
}

std::string replaced(Budget& budget, const std::string& text, const Replacement& how) {
  // The text may grow by a factor of the new string's length: count it first.
  const uint64_t most = text.size() / std::max<size_t>(how.from.size(), 1) + 1;
  const uint64_t times =
      how.count < 0 ? most : std::min<uint64_t>(most, static_cast<uint64_t>(how.count));
  if (how.to.size() > how.from.size() && times * how.to.size() > (uint64_t{1} << 20)) {
    budget.bytes(times * how.to.size());
  }
  return replace(text, how.from, how.to, how.count);
}

}  // namespace cleave::inline chat::jinja
