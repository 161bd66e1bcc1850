// How values are printed: Python's str(), repr() and json.dumps().
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "cleave/chat/jinja/value.h"
#include "cleave/text/utf8.h"

namespace cleave::inline chat::jinja {
namespace {

void append_hex(std::string& out, uint32_t value, int digits) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int i = digits - 1; i >= 0; --i) out.push_back(kDigits[(value >> (4 * i)) & 0xF]);
}

std::string quoted(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = next_code_point(text, at);
    if (c.value == static_cast<unsigned char>(quote) || c.value == '\\') {
      out += {'\\', static_cast<char>(c.value)};
    } else if (c.value == '\n') {
      out += "\\n";
    } else if (c.value == '\r') {
      out += "\\r";
    } else if (c.value == '\t') {
      out += "\\t";
    } else if (c.value < 0x20 || (c.value >= 0x7F && c.value <= 0xA0) || c.value == 0xAD) {
      out += "\\x";
      append_hex(out, c.value, 2);
    } else {
      out += text.substr(at, c.bytes);
    }
    at += c.bytes;
  }
  out.push_back(quote);
  return out;
}

class ReprWriter {
 public:
  explicit ReprWriter(Budget& budget) : budget_(budget) {}

  void write(const Value& value) {
    budget_.step();
    const size_t before = out_.size();
    if (value.is_undefined()) {
      out_ += "Undefined";
    } else if (value.is_none()) {
      out_ += "None";
    } else if (value.is<bool>()) {
      out_ += value.as<bool>() ? "True" : "False";
    } else if (value.is<int64_t>()) {
      out_ += std::to_string(value.as<int64_t>());
    } else if (value.is<LongInt>()) {
      out_ += *value.as<LongInt>().digits;
    } else if (value.is<double>()) {
      out_ += float_text(value.as<double>());
    } else if (value.is_text()) {
      out_ += quoted(value.string());
    } else if (value.is_list()) {
      return write_list(*value.as<ListPtr>());
    } else if (value.is_dict()) {
      return write_dict(value);
    } else {
      fail(str("a value of type ", value.type_name(), " cannot be printed"));
    }
    budget_.bytes(out_.size() - before);
  }

  std::string out() { return std::move(out_); }

 private:
  void write_list(const List& list) {
    out_.push_back(list.is_tuple ? '(' : '[');
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out_ += ", ";
      write(list.items[i]);
    }
    if (list.is_tuple && list.items.size() == 1) out_.push_back(',');
    out_.push_back(list.is_tuple ? ')' : ']');
  }

  void write_dict(const Value& dict) {
    out_.push_back('{');
    bool first = true;
    for (const auto& [key, value] : dict.members()) {
      if (!first) out_ += ", ";
      first = false;
      write(key);
      out_ += ": ";
      write(value);
    }
    out_.push_back('}');
  }

  Budget& budget_;
  std::string out_;
};

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

  void write(const Value& value, int level) {
    budget_.step();
    const size_t before = out_.size();
    if (value.is_none()) {
      out_ += "null";
    } else if (value.is<bool>()) {
      out_ += value.as<bool>() ? "true" : "false";
    } else if (value.is<int64_t>()) {
      out_ += std::to_string(value.as<int64_t>());
    } else if (value.is<LongInt>()) {
      out_ += *value.as<LongInt>().digits;
    } else if (value.is<double>()) {
      out_ += number(value.as<double>());
    } else if (value.is_text()) {
      string(value.string());
    } else if (value.is_list()) {
      return list(value.items(), level);
    } else if (value.is_dict()) {
      return dict(value.members(), level);
    } else {
      fail(str("tojson cannot write a value of type ", value.type_name()));
    }
    budget_.bytes(out_.size() - before);
  }

  std::string out() { return std::move(out_); }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void escape(uint32_t unit) {
    out_ += "\\u";
    append_hex(out_, unit, 4);
  }

  void string(const std::string& text) {
    out_.push_back('"');
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = next_code_point(text, at);
      constexpr std::string_view kPlain = "\"\\\n\r\t\b\f";
      constexpr std::string_view kLetters = "\"\\nrtbf";
      const size_t named = c.value < 0x80 ? kPlain.find(static_cast<char>(c.value)) : kPlain.npos;
      if (named != kPlain.npos) {
        out_ += {'\\', kLetters[named]};
      } else if (c.value < 0x20 || (style_.ascii && c.value >= 0x7F && c.value < 0x10000)) {
        if (c.value == 0x7F) {
          out_.push_back('\x7F');
        } else {
          escape(c.value);
        }
      } else if (style_.ascii && c.value >= 0x10000) {
        escape(0xD800 + ((c.value - 0x10000) >> 10));
        escape(0xDC00 + ((c.value - 0x10000) & 0x3FF));
      } else {
        out_ += text.substr(at, c.bytes);
      }
      at += c.bytes;
    }
    out_.push_back('"');
  }

  void line(int level) {
    if (!style_.multi_line) return;
    budget_.bytes(1 + style_.indent.size() * static_cast<size_t>(level));
    out_.push_back('\n');
    for (int i = 0; i < level; ++i) out_ += style_.indent;
  }

  void separate(const std::string& separator) {
    budget_.bytes(separator.size());
    out_ += separator;
  }

  void list(const std::vector<Value>& items, int level) {
    out_.push_back('[');
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) separate(style_.item_separator);
      line(level + 1);
      write(items[i], level + 1);
    }
    if (!items.empty()) line(level);
    out_.push_back(']');
  }

  void key(const Value& key) {
    if (key.is_text()) return string(key.string());
    out_.push_back('"');
    write(key, 0);
    out_.push_back('"');
  }

  void dict(std::vector<std::pair<Value, Value>> members, int level) {
    if (style_.sorted) {
      std::stable_sort(members.begin(), members.end(), [this](const auto& a, const auto& b) {
        return less(a.first, b.first, budget_);
      });
    }
    out_.push_back('{');
    bool first = true;
    for (const auto& [name, value] : members) {
      if (!first) separate(style_.item_separator);
      first = false;
      line(level + 1);
      key(name);
      separate(style_.key_separator);
      write(value, level + 1);
    }
    if (!members.empty()) line(level);
    out_.push_back('}');
  }

  const JsonStyle& style_;
  Budget& budget_;
  std::string out_;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer{};
  char* const end = buffer.data() + buffer.size();
  const auto format = [&](std::chars_format how) {
    return std::string(buffer.data(), std::to_chars(buffer.data(), end, value, how).ptr);
  };
  std::string scientific = format(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  // In this range a double has at most 22 characters.
  std::string plain = format(std::chars_format::fixed);
  return plain.find('.') == std::string::npos ? plain + ".0" : plain;
}

std::string to_repr(const Value& value, Budget& budget) {
  ReprWriter writer(budget);
  writer.write(value);
  return writer.out();
}

std::string to_text(const Value& value, Budget& budget) {
  if (value.is_text()) return value.string();
  if (value.is_undefined()) return {};
  return to_repr(value, budget);
}

std::string to_json(const Value& value, const JsonStyle& style, Budget& budget) {
  JsonWriter writer(style, budget);
  writer.write(value, 0);
  return writer.out();
}

}  // namespace cleave::inline chat::jinja
