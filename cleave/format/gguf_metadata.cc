#include <algorithm>

#include "cleave/base/error.h"
#include "cleave/format/gguf.h"

namespace cleave::inline format {

std::string GgufValue::text() const {
  if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const auto* number = std::get_if<int64_t>(&value)) return str(*number);
  if (const auto* number = std::get_if<double>(&value)) return str(*number);
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  size_t count = 0;
  if (const auto* list = std::get_if<Ints>(&value)) count = list->size();
  if (const auto* list = std::get_if<Numbers>(&value)) count = list->size();
  if (const auto* list = std::get_if<Strings>(&value)) count = list->size();
  return str(count, " values");
}

void GgufMetadata::add(std::string key, GgufValue value) {
  const bool added = by_key_.emplace(key, entries_.size()).second;
  if (!added) fail(key, "the key occurs twice");
  entries_.emplace_back(std::move(key), std::move(value));
}

const GgufValue* GgufMetadata::find(std::string_view key) const {
  const auto at = by_key_.find(std::string(key));
  return at == by_key_.end() ? nullptr : &entries_[at->second].second;
}

template <class T>
const T& GgufMetadata::at(std::string_view key, std::string_view expected) const {
  const GgufValue* value = find(key);
  if (value == nullptr) fail(key, "it is missing");
  const T* wanted = std::get_if<T>(&value->value);
  if (wanted == nullptr) fail(key, str("expected ", expected));
  return *wanted;
}

int64_t GgufMetadata::int_at(std::string_view key) const {
  return at<int64_t>(key, "an integer");
}

int64_t GgufMetadata::int_or(std::string_view key, int64_t fallback) const {
  return has(key) ? int_at(key) : fallback;
}

double GgufMetadata::number_or(std::string_view key, double fallback) const {
  return has(key) ? at<double>(key, "a floating-point number") : fallback;
}

bool GgufMetadata::bool_or(std::string_view key, bool fallback) const {
  return has(key) ? at<bool>(key, "true or false") : fallback;
}

const std::string& GgufMetadata::string_at(std::string_view key) const {
  return at<std::string>(key, "a string");
}

std::string GgufMetadata::string_or(std::string_view key, std::string_view fallback) const {
  return has(key) ? string_at(key) : std::string(fallback);
}

const GgufValue::Ints& GgufMetadata::ints_at(std::string_view key) const {
  return at<GgufValue::Ints>(key, "an array of integers");
}

const GgufValue::Numbers& GgufMetadata::numbers_at(std::string_view key) const {
  return at<GgufValue::Numbers>(key, "an array of numbers");
}

const GgufValue::Strings& GgufMetadata::strings_at(std::string_view key) const {
  return at<GgufValue::Strings>(key, "an array of strings");
}

void GgufMetadata::fail(std::string_view key, std::string_view problem) const {
  throw Error(Code::kFormat, str(source_, ": metadata '", key, "': ", problem));
}

}  // namespace cleave::inline format
