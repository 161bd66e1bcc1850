#include "cleave/text/json_parser.h"

#include <algorithm>
#include <utility>

#include "cleave/text/utf8.h"

namespace cleave::inline text {
namespace {

// Memory per value as documented in JsonLimits: a node, its entries in children, sorted and
// pending_, and the string objects of its key and value.
static_assert(sizeof(JsonNode) + 3 * sizeof(uint32_t) + 2 * sizeof(std::string) <= 104);

constexpr int kMaxDepth = 1024;  // the parser is recursive; this depth fits on any stack

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

/// The first eight bytes of a key as a big-endian number, which decides most comparisons of keys.
uint64_t prefix_of(std::string_view key) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) {
    value = (value << 8) | (i < key.size() ? static_cast<uint8_t>(key[i]) : 0U);
  }
  return value;
}

class Parser {
 public:
  Parser(std::string_view text, std::string source, const JsonLimits& limits)
      : text_(text), limits_(limits) {
    tree_.source = std::move(source);
    check(text.size() <= limits.max_bytes && text.size() < UINT32_MAX, 0, "the text has ",
          text.size(), " bytes; at most ", limits.max_bytes, " are read");
  }

  JsonTree run() {
    check(!text_.starts_with(kByteOrderMark), 0,
          "the text begins with a byte order mark; save it as plain UTF-8");
    skip_space();
    parse_value(0, 0, 1);
    skip_space();
    if (!at_end()) unexpected("nothing after the end of the value");
    return std::move(tree_);
  }

 private:
  [[nodiscard]] char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] uint32_t here() const { return static_cast<uint32_t>(at_); }

  template <class... Parts>
  [[noreturn]] void refuse(size_t byte, const Parts&... parts) const {
    throw Error(Code::kFormat, str(tree_.source, ": ", parts..., " (byte ", byte, ")"));
  }

  template <class... Parts>
  void check(bool condition, size_t byte, const Parts&... parts) const {
    if (!condition) [[unlikely]] {
      refuse(byte, parts...);
    }
  }

  [[noreturn]] void unexpected(std::string_view expected) const {
    const std::string_view rest = text_.substr(std::min(at_, text_.size()));
    if (rest.starts_with("//") || rest.starts_with("/*")) {
      refuse(at_, "found a comment, which JSON does not have; remove it");
    }
    refuse(at_, "found ", shown(), ", expected ", expected);
  }

  /// The next byte as shown in an error.
  [[nodiscard]] std::string shown() const {
    if (at_end()) return "the end of the text";
    const char c = peek();
    if (c > 0x20 && c < 0x7F) return str("'", c, "'");
    return str("byte value ", static_cast<int>(static_cast<uint8_t>(c)));
  }

  void skip_space() {
    while (peek() == ' ' || peek() == '\n' || peek() == '\r' || peek() == '\t') ++at_;
  }

  void parse_value(uint32_t parent, uint32_t key, int depth) {
    check(depth <= std::min(limits_.max_depth, kMaxDepth), at_, "values are nested deeper than ",
          std::min(limits_.max_depth, kMaxDepth), " levels");
    check(tree_.nodes.size() < limits_.max_values, at_, "the text has more than ",
          limits_.max_values, " values");
    const auto node = static_cast<uint32_t>(tree_.nodes.size());
    tree_.nodes.push_back({.offset = here(), .parent = parent, .key = key});
    switch (peek()) {
      case '{':
        parse_container(node, depth, '}');
        break;
      case '[':
        parse_container(node, depth, ']');
        break;
      case '"': {
        const uint32_t string = parse_string();
        tree_.nodes[node].type = Json::Type::kString;
        tree_.nodes[node].first = string;
        break;
      }
      case 't':
        parse_word(node, "true", Json::Type::kBool);
        break;
      case 'f':
        parse_word(node, "false", Json::Type::kBool);
        break;
      case 'n':
        parse_word(node, "null", Json::Type::kNull);
        break;
      default:
        parse_number(node);
    }
  }

  void parse_word(uint32_t node, std::string_view word, Json::Type type) {
    check(text_.substr(at_, word.size()) == word, at_, "expected ", word);
    at_ += word.size();
    tree_.nodes[node].type = type;
    tree_.nodes[node].first = word == "true" ? 1 : 0;
  }

  void parse_digits() {
    if (!is_digit(peek())) unexpected("a digit");
    while (is_digit(peek())) ++at_;
  }

  void parse_number(uint32_t node) {
    if (peek() != '-' && !is_digit(peek())) unexpected("a value");
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
      check(!is_digit(peek()), at_, "a number of several digits begins with 0");
    } else {
      parse_digits();
    }
    if (peek() == '.') {
      ++at_;
      parse_digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      parse_digits();
    }
    JsonNode& number = tree_.nodes[node];
    number.type = Json::Type::kNumber;
    number.first = static_cast<uint32_t>(tree_.numbers.size());
    number.count = here() - number.offset;
    tree_.numbers += text_.substr(number.offset, number.count);
  }

  void parse_container(uint32_t node, int depth, char close) {
    const size_t first = pending_.size();
    const bool object = close == '}';
    ++at_;
    skip_space();
    while (peek() != close || pending_.size() > first) {
      const auto position = static_cast<uint32_t>(pending_.size() - first);
      const uint32_t key = object ? parse_key() : position;
      pending_.push_back(static_cast<uint32_t>(tree_.nodes.size()));
      parse_value(node, key, depth + 1);
      skip_space();
      if (peek() == close) break;
      if (peek() != ',') unexpected(object ? "',' or '}'" : "',' or ']'");
      ++at_;
      skip_space();
    }
    ++at_;
    finish_container(node, first, object);
  }

  uint32_t parse_key() {
    if (peek() != '"') unexpected("a key in quotes");
    const uint32_t key = parse_string();
    skip_space();
    if (peek() != ':') unexpected("':'");
    ++at_;
    skip_space();
    return key;
  }

  /// Moves the container's children from pending_ to the tree: in file order and sorted by key.
  void finish_container(uint32_t node, size_t first, bool object) {
    JsonNode& at = tree_.nodes[node];
    at.type = object ? Json::Type::kObject : Json::Type::kArray;
    at.first = static_cast<uint32_t>(tree_.children.size());
    at.count = static_cast<uint32_t>(pending_.size() - first);
    const auto begin = pending_.begin() + static_cast<std::ptrdiff_t>(first);
    tree_.children.insert(tree_.children.end(), begin, pending_.end());
    if (object) sort_members(at, {begin, pending_.end()});
    pending_.resize(first);
  }

  void sort_members(JsonNode& object, const std::vector<uint32_t>& members) {
    using Entry = std::pair<uint64_t, uint32_t>;
    std::vector<Entry> entries;
    entries.reserve(members.size());
    for (const uint32_t member : members) entries.emplace_back(prefix_of(key_of(member)), member);
    std::sort(entries.begin(), entries.end(), [this](const Entry& a, const Entry& b) {
      return a.first != b.first ? a.first < b.first : key_of(a.second) < key_of(b.second);
    });
    object.sorted = static_cast<uint32_t>(tree_.sorted.size());
    for (size_t i = 0; i < entries.size(); ++i) {
      const uint32_t member = entries[i].second;
      const bool is_new = i == 0 || key_of(entries[i - 1].second) != key_of(member);
      check(is_new, tree_.nodes[member].offset, "the key \"", key_of(member).substr(0, 60),
            "\" occurs twice in one object");
      tree_.sorted.push_back(member);
    }
  }

  [[nodiscard]] const std::string& key_of(uint32_t member) const {
    return tree_.strings[tree_.nodes[member].key];
  }

  uint32_t parse_string() {
    const size_t open = at_++;
    std::string value;
    while (true) {
      const size_t run = at_;
      while (!at_end() && peek() != '"' && peek() != '\\' && static_cast<uint8_t>(peek()) >= 0x20) {
        ++at_;
      }
      const std::string_view part = text_.substr(run, at_ - run);
      const size_t bad = first_bad_utf8(part);
      check(bad == part.size(), run + bad, "a string is not valid UTF-8");
      value += part;
      check(!at_end(), open, "a string has no end");
      if (peek() == '"') break;
      check(peek() == '\\', at_, "a string holds the control character ", static_cast<int>(peek()),
            "; write it as an escape");
      parse_escape(value);
    }
    ++at_;
    tree_.strings.push_back(std::move(value));
    return static_cast<uint32_t>(tree_.strings.size() - 1);
  }

  void parse_escape(std::string& value) {
    constexpr std::string_view kFrom = "\"\\/bfnrt";
    constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
    const size_t start = at_++;
    const size_t simple = at_end() ? std::string_view::npos : kFrom.find(peek());
    if (simple != std::string_view::npos) {
      value.push_back(kTo[simple]);
      ++at_;
      return;
    }
    if (peek() != 'u') unexpected("a JSON escape after the backslash");
    char32_t unit = parse_hex();
    if (unit >= 0xD800 && unit < 0xDC00) {
      const bool paired = text_.substr(at_).starts_with("\\u");
      check(paired, start, "half of a surrogate pair stands alone");
      ++at_;
      const char32_t low = parse_hex();
      check(low >= 0xDC00 && low < 0xE000, start, "half of a surrogate pair stands alone");
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    check(unit < 0xD800 || unit > 0xDFFF, start, "half of a surrogate pair stands alone");
    append_utf8(value, unit);
  }

  /// Reads the "u" at the current position and four hexadecimal digits.
  char32_t parse_hex() {
    ++at_;
    char32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      constexpr std::string_view kDigits = "0123456789abcdef";
      const char c = peek();
      const size_t digit = kDigits.find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (at_end() || digit == std::string_view::npos) unexpected("a hexadecimal digit");
      value = value * 16 + static_cast<char32_t>(digit);
      ++at_;
    }
    return value;
  }

  std::string_view text_;
  JsonLimits limits_;
  JsonTree tree_;
  size_t at_ = 0;
  std::vector<uint32_t> pending_;  // stack: children of all open containers
};

}  // namespace

JsonTree parse_json_tree(std::string_view text, std::string source, const JsonLimits& limits) {
  return Parser(text, std::move(source), limits).run();
}

}  // namespace cleave::inline text
