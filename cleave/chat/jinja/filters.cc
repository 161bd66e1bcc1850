// The filters after a bar, except those over lists (list_filters.cc).
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "cleave/chat/jinja/interpreter.h"
#include "cleave/chat/jinja/string_ops.h"

namespace cleave::inline chat::jinja {
namespace {

Value trim(const FilterCall& call) {
  const Value set = call.argument(0, "chars", Value(nullptr));
  const std::string text = call.text();
  if (!call.subject.is_text() && set.is_text()) {
    call.run.budget().search(text.size(), set.string().size());
  }
  return call.run.text(std::string(
      strip(text, set.is_text() ? std::optional<std::string_view>(set.string()) : std::nullopt)));
}

template <std::string (*convert)(std::string_view)>
Value converted(const FilterCall& call) {
  return call.run.text(convert(call.text()));
}

bool separates_words(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || c == ' ' ||
         (c >= 9 && c <= 13);
}

Value default_filter(const FilterCall& call) {
  const bool also_false = call.argument(1, "boolean", Value(false)).truth();
  const bool is_missing = call.subject.is_undefined() || (also_false && !call.subject.truth());
  return is_missing ? call.argument(0, "default_value", Value::text("")) : call.subject;
}

Value length(const FilterCall& call) {
  const Value& value = call.subject;
  if (value.is_text()) return Value(num_characters(value.string()));
  if (value.is_dict()) return Value(static_cast<int64_t>(value.members().size()));
  return Value(static_cast<int64_t>(call.run.elements(value).size()));
}

Value tojson(const FilterCall& call) {
  JsonStyle style;
  style.ascii = call.argument(0, "ensure_ascii", Value(false)).truth();
  style.sorted = call.argument(3, "sort_keys", Value(false)).truth();
  const Value indent = call.argument(1, "indent", Value(nullptr));
  style.multi_line = !indent.is_none();
  if (indent.is_text()) style.indent = indent.string();
  if (indent.is_integral()) {
    style.indent =
        std::string(static_cast<size_t>(std::clamp<int64_t>(indent.integer(), 0, 64)), ' ');
  }
  if (style.multi_line) style.item_separator = ",";
  const Value separators = call.argument(2, "separators", Value(nullptr));
  if (separators.is_list()) {
    const auto& parts = separators.items();
    if (parts.size() != 2 || !parts[0].is_text() || !parts[1].is_text()) {
      fail("tojson expects two strings as separators");
    }
    style.item_separator = parts[0].string();
    style.key_separator = parts[1].string();
  }
  return Value::text(to_json(call.subject, style, call.run.budget()));
}

Value indent(const FilterCall& call) {
  const Value width = call.argument(0, "width", Value(int64_t{4}));
  const bool first = call.argument(1, "first", Value(false)).truth();
  const bool blank = call.argument(2, "blank", Value(false)).truth();
  const std::string space =
      width.is_text() ? width.string()
                      : std::string(static_cast<size_t>(std::clamp<int64_t>(
                                        width.is_integral() ? width.integer() : 4, 0, 1024)),
                                    ' ');
  const std::string text = call.text() + '\n';
  std::string out = first ? space : "";
  bool is_first = true;
  for (const std::string_view line : split_lines(text)) {
    if (!is_first) out += '\n';
    if (!is_first && (blank || !line.empty())) {
      call.run.budget().bytes(space.size());
      out += space;
    }
    is_first = false;
    out += line;
  }
  return call.run.text(std::move(out));
}

Value replace_filter(const FilterCall& call) {
  Budget& budget = call.run.budget();
  const Value count = call.argument(2, "count", Value(nullptr));
  const std::string text = call.text();
  const Replacement how{to_text(call.argument(0, "old", {}), budget),
                        to_text(call.argument(1, "new", {}), budget),
                        count.is_integral() ? count.integer() : -1};
  if (!call.subject.is_text()) budget.search(text.size(), how.from.size());
  return call.run.text(replaced(budget, text, how));
}

Value to_integer(const FilterCall& call) {
  Value fallback = call.argument(0, "default", Value(int64_t{0}));
  const Value base = call.argument(1, "base", Value(int64_t{10}));
  const Value& value = call.subject;
  if (value.is_integral()) return Value(value.integer());
  if (value.is<LongInt>()) return value;
  std::optional<double> number;
  if (value.is<double>()) number = value.as<double>();
  if (value.is_text()) {
    const int64_t wanted = base.is_integral() ? base.integer() : 10;
    if (wanted >= 2 && wanted <= 36) {
      if (const auto whole = parse_integer(value.string(), static_cast<int>(wanted))) {
        return Value(*whole);
      }
    }
    number = parse_float(value.string());
  }
  constexpr double kLimit = 9.2e18;
  if (!number || !(std::abs(*number) < kLimit)) return fallback;
  return Value(static_cast<int64_t>(*number));
}

Value to_float(const FilterCall& call) {
  const Value& value = call.subject;
  if (value.is_number()) return Value(value.number());
  std::optional<double> number;
  if (value.is_text()) number = parse_float(value.string());
  if (value.is<LongInt>()) number = parse_float(*value.as<LongInt>().digits);
  return number ? Value(*number) : call.argument(0, "default", Value(0.0));
}

Value absolute(const FilterCall& call) {
  const Value& value = call.subject;
  if (value.is<double>()) return Value(std::abs(value.as<double>()));
  if (!value.is_integral()) fail("abs expects a number");
  return value.integer() < 0 ? operate(call.run, "-", Value(int64_t{0}), value)
                             : Value(value.integer());
}

Value round_filter(const FilterCall& call) {
  const Value digits = call.argument(0, "precision", Value(int64_t{0}));
  const Value method = call.argument(1, "method", Value::text("common"));
  if (!call.subject.is_number() || !digits.is_integral() || std::abs(digits.integer()) > 300) {
    fail("round expects a number and a precision");
  }
  const double scale = std::pow(10.0, static_cast<double>(digits.integer()));
  const double scaled = call.subject.number() * scale;
  const std::string how = to_text(method, call.run.budget());
  if (how == "ceil") return Value(std::ceil(scaled) / scale);
  if (how == "floor") return Value(std::floor(scaled) / scale);
  return Value(std::nearbyint(scaled) / scale);
}

/// printf formats: %s, %d, %i and %%.
Value format(const FilterCall& call) {
  const std::string text = call.text();
  std::string out;
  size_t next = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    const char kind = ++i < text.size() ? text[i] : ' ';
    if (kind == '%') {
      out.push_back('%');
      continue;
    }
    const Value* value = call.arguments.find(next++, "");
    if (value == nullptr || (kind != 's' && kind != 'd' && kind != 'i')) {
      fail("format supports %s, %d, %i and %%, and needs a value for each but %%");
    }
    if (kind != 's' && !value->is_number()) fail(str("%", kind, " expects a number"));
    const std::string part = kind != 's' && value->is<double>()
                                 ? to_text(to_integer({call.run, *value, {}}), call.run.budget())
                                 : to_text(*value, call.run.budget());
    call.run.budget().bytes(part.size());
    out += part;
  }
  return call.run.text(std::move(out));
}

Value escape(const FilterCall& call) {
  std::string out;
  for (const char c : call.text()) {
    constexpr std::string_view kMarks = "&<>\"'";
    constexpr std::array<std::string_view, 5> kNames{"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    const size_t at = kMarks.find(c);
    if (at == std::string_view::npos) {
      out.push_back(c);
    } else {
      out += kNames[at];
    }
  }
  return call.run.text(std::move(out));
}

using Entry = std::pair<std::string_view, FilterBody>;

constexpr std::array kFilters{
    Entry{"abs", absolute},
    Entry{"capitalize", converted<capitalize>},
    Entry{"count", length},
    Entry{"d", default_filter},
    Entry{"default", default_filter},
    Entry{"e", escape},
    Entry{"escape", escape},
    Entry{"float", to_float},
    Entry{"format", format},
    Entry{"indent", indent},
    Entry{"int", to_integer},
    Entry{"length", length},
    Entry{"lower", converted<lower>},
    Entry{"replace", replace_filter},
    Entry{"round", round_filter},
    Entry{"safe", [](const FilterCall& call) { return call.subject; }},
    Entry{"string", [](const FilterCall& call) { return call.run.text(call.text()); }},
    Entry{
        "title",
        [](const FilterCall& call) { return call.run.text(title(call.text(), separates_words)); }},
    Entry{"tojson", tojson},
    Entry{"trim", trim},
    Entry{"upper", converted<upper>},
};

}  // namespace

Value Interpreter::filter(const std::string& name, const Value& subject, Arguments& arguments) {
  const Nested nested(depth_);
  const auto* found = std::find_if(kFilters.begin(), kFilters.end(),
                                   [&](const Entry& entry) { return entry.first == name; });
  const FilterBody body = found != kFilters.end() ? found->second : find_list_filter(name);
  if (body == nullptr) fail(str("there is no filter '", name, "'"));
  charge_searches(budget_, subject, arguments);
  return body({*this, subject, arguments});
}

}  // namespace cleave::inline chat::jinja
