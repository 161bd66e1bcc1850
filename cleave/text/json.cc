#include "cleave/text/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "cleave/file/file.h"
#include "cleave/text/json_parser.h"
#include "cleave/text/utf8.h"

namespace cleave::inline text {
namespace {

constexpr size_t kShownBytes = 60;  // of a value in an error message

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out.reserve(out.size() + text.size() + 2);
  out.push_back('"');
  size_t run = 0;  // start of the bytes that need no escape and are not yet appended
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    out += text.substr(run, i - run);
    run = i + 1;
    out += byte < 0x20 ? "\\u00" : "\\";
    if (byte < 0x20) out.push_back(kHex[byte >> 4]);
    out.push_back(byte < 0x20 ? kHex[byte & 15] : text[i]);
  }
  out += text.substr(run);
  out.push_back('"');
}

}  // namespace

struct Json::Document {
  JsonTree tree;

  [[nodiscard]] std::string path(uint32_t node) const;
  /// A number as written in the file.
  [[nodiscard]] std::string_view number(uint32_t node) const {
    const JsonNode& at = tree.nodes[node];
    return std::string_view(tree.numbers).substr(at.first, at.count);
  }
  [[nodiscard]] std::optional<uint32_t> find(uint32_t object, std::string_view key) const;
  void dump(uint32_t node, std::string& out, size_t enough) const;
};

/// "a.b[3].c"; empty for the root.
std::string Json::Document::path(uint32_t node) const {
  std::vector<std::string> steps;
  for (; node != 0; node = tree.nodes[node].parent) {
    const JsonNode& at = tree.nodes[node];
    const bool in_array = tree.nodes[at.parent].type == Type::kArray;
    steps.push_back(in_array ? str("[", at.key, "]") : str(".", tree.strings[at.key]));
  }
  std::string text;
  std::reverse(steps.begin(), steps.end());
  for (const std::string& step : steps) text += step;
  return text.starts_with('.') ? text.substr(1) : text;
}

std::optional<uint32_t> Json::Document::find(uint32_t object, std::string_view key) const {
  const JsonNode& node = tree.nodes[object];
  const auto begin = tree.sorted.begin() + node.sorted;
  const auto end = begin + node.count;
  const auto found = std::lower_bound(begin, end, key, [this](uint32_t member, std::string_view k) {
    return tree.strings[tree.nodes[member].key] < k;
  });
  if (found == end || tree.strings[tree.nodes[*found].key] != key) return std::nullopt;
  return *found;
}

/// Appends the value; stops early once `out` has `enough` bytes.
void Json::Document::dump(uint32_t node, std::string& out, size_t enough) const {
  const JsonNode& at = tree.nodes[node];
  if (at.type == Type::kString) return append_quoted(out, tree.strings[at.first]);
  if (at.type == Type::kNumber) {
    out += number(node);
    return;
  }
  if (at.type == Type::kNull || at.type == Type::kBool) {
    out += at.type == Type::kNull ? "null" : at.first == 1 ? "true" : "false";
    return;
  }
  out.push_back(at.type == Type::kArray ? '[' : '{');
  for (uint32_t i = 0; i < at.count && out.size() < enough; ++i) {
    const uint32_t child = tree.children[at.first + i];
    if (i > 0) out.push_back(',');
    if (at.type == Type::kObject) {
      append_quoted(out, tree.strings[tree.nodes[child].key]);
      out.push_back(':');
    }
    dump(child, out, enough);
  }
  out.push_back(at.type == Type::kArray ? ']' : '}');
}

Json Json::parse(std::string_view text, std::string source, const JsonLimits& limits) {
  auto document = std::make_shared<Document>();
  document->tree = parse_json_tree(text, std::move(source), limits);
  return {std::move(document), 0};
}

Json Json::parse_file(const std::string& path, const JsonLimits& limits) {
  return parse(read_file(path, limits.max_bytes), path, limits);
}

Json::Type Json::type() const {
  return document_->tree.nodes[node_].type;
}

uint64_t Json::offset() const {
  return document_->tree.nodes[node_].offset;
}

void Json::fail(std::string_view message) const {
  const std::string path = document_->path(node_);
  std::string subject = "the document";
  if (!path.empty()) {
    subject.clear();
    append_quoted(subject, path);
  }
  std::string value;
  document_->dump(node_, value, kShownBytes + 1);
  if (value.size() > kShownBytes) {
    value.resize(kShownBytes);
    value.resize(value.size() - unfinished_utf8_tail(value));
    value += "...";
  }
  throw Error(Code::kFormat, str(document_->tree.source, ": ", subject, " is ", value, "; ",
                                 message, " (byte ", offset(), ")"));
}

bool Json::as_bool() const {
  if (!is(Type::kBool)) fail("expected true or false");
  return document_->tree.nodes[node_].first == 1;
}

bool Json::is_int() const {
  if (!is(Type::kNumber)) return false;
  const std::string_view text = document_->number(node_);
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.begin(), text.end(), value);
  return error == std::errc() && stop == text.end();
}

int64_t Json::as_int(int64_t low, int64_t high) const {
  int64_t value = 0;
  if (is_int()) {
    const std::string_view text = document_->number(node_);
    std::from_chars(text.begin(), text.end(), value);
  }
  if (!is_int() || value < low || value > high) {
    if (low == INT64_MIN && high == INT64_MAX) fail("expected an integer");
    if (high == INT64_MAX) fail(str("expected an integer of at least ", low));
    fail(str("expected an integer in [", low, ", ", high, "]"));
  }
  return value;
}

double Json::as_number(double low, double high) const {
  const bool is_bounded = low > -kAnyNumber || high < kAnyNumber;
  const std::string range = is_bounded ? str(" in [", low, ", ", high, "]") : "";
  if (!is(Type::kNumber)) fail(str("expected a number", range));
  const std::string_view text = document_->number(node_);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.begin(), text.end(), value);
  if (error != std::errc() || stop != text.end() || !std::isfinite(value)) {
    fail("expected a number that a 64-bit float can hold");
  }
  if (value < low || value > high) fail(str("expected a number", range));
  return value;
}

const std::string& Json::as_string() const {
  if (!is(Type::kString)) fail("expected a string");
  return document_->tree.strings[document_->tree.nodes[node_].first];
}

size_t Json::size() const {
  if (!is(Type::kArray) && !is(Type::kObject)) fail("expected an array or an object");
  return document_->tree.nodes[node_].count;
}

Json Json::at(size_t index) const {
  const size_t count = size();
  if (index >= count) fail(str("expected at least ", index + 1, " elements, found ", count));
  return {document_, document_->tree.children[document_->tree.nodes[node_].first + index]};
}

const std::string& Json::key(size_t index) const {
  if (!is(Type::kObject)) fail("expected an object");
  const Json child = at(index);
  return document_->tree.strings[document_->tree.nodes[child.node_].key];
}

Json Json::at(std::string_view key) const {
  if (!is(Type::kObject)) fail("expected an object");
  const auto found = document_->find(node_, key);
  if (!found) {
    const std::string path = document_->path(node_);
    std::string subject;
    append_quoted(subject, path.empty() ? std::string(key) : str(path, ".", key));
    throw Error(Code::kFormat, str(document_->tree.source, ": ", subject,
                                   " is missing in the object at byte ", offset()));
  }
  return {document_, *found};
}

bool Json::has(std::string_view key) const {
  if (!is(Type::kObject)) fail("expected an object");
  const auto found = document_->find(node_, key);
  return found && document_->tree.nodes[*found].type != Type::kNull;
}

int64_t Json::int_or(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
  return has(key) ? at(key).as_int(low, high) : fallback;
}

double Json::number_or(std::string_view key, double fallback, double low, double high) const {
  return has(key) ? at(key).as_number(low, high) : fallback;
}

bool Json::bool_or(std::string_view key, bool fallback) const {
  return has(key) ? at(key).as_bool() : fallback;
}

std::string Json::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? at(key).as_string() : std::string(fallback);
}

std::string Json::dump() const {
  std::string out;
  document_->dump(node_, out, SIZE_MAX);
  return out;
}

Json parsed_as(std::string_view expected, const std::function<Json()>& parse) {
  try {
    return parse();
  } catch (const Error& error) {
    if (error.code() != Code::kFormat) throw;
    throw Error(error.code(), str(error.what(), "; ", expected));
  }
}

}  // namespace cleave::inline text
