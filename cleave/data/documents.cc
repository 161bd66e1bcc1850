#include "cleave/data/documents.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "cleave/base/error.h"
#include "cleave/text/jsonl.h"

namespace cleave::inline data {
namespace {

/// Whether a path ends in this extension, in small or capital letters.
bool has_extension(const std::string& path, std::string_view wanted) {
  std::string extension = std::filesystem::path(path).extension();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension == wanted;
}

bool holds(const Json& value, std::string_view key, Json::Type type) {
  return value.is(Json::Type::kObject) && value.has(key) && value.at(key).is(type);
}

/// Refuses a row whose "text" is no string.
void require_string_text(const Json& row) {
  if (row.is(Json::Type::kObject) && row.has("text")) (void)row.at("text").as_string();
}

}  // namespace

std::string_view name(FileKind kind) {
  switch (kind) {
    case FileKind::kText:
      return "text";
    case FileKind::kJsonTexts:
      return "JSONL with \"text\"";
    case FileKind::kJsonRows:
      return "JSONL with \"input_ids\"";
  }
  CLEAVE_BUG("file kind ", static_cast<int>(kind));
}

FileKind file_kind(const std::string& path) {
  const bool named_jsonl = std::filesystem::path(path).extension() == ".jsonl";
  if (!named_jsonl && first_byte(path) != '{') return FileKind::kText;
  try {
    const std::optional<Json> first = JsonLines(path).next();
    if (!first) return FileKind::kJsonTexts;  // named .jsonl and empty
    if (holds(*first, "input_ids", Json::Type::kArray)) return FileKind::kJsonRows;
    if (holds(*first, "text", Json::Type::kString)) return FileKind::kJsonTexts;
    if (named_jsonl && first->is(Json::Type::kObject) && first->has("chosen")) {
      first->fail("it is a row of preferences, which only --task dpo reads");
    }
    if (named_jsonl) {
      require_string_text(*first);
      first->fail(
          "expected an object with \"text\", \"input_ids\", \"messages\", \"conversations\", "
          "\"prompt\" and \"completion\", or \"instruction\" and \"output\"");
    }
  } catch (const Error& error) {
    if (named_jsonl || error.code() != Code::kFormat) throw;  // else a text that begins with {
  }
  return FileKind::kText;
}

std::string names_of(const std::vector<std::string>& files) {
  const size_t others = files.size() - 1;
  return others == 0 ? files.front() : str(files.front(), " and ", counted(others, "more file"));
}

bool is_csv(const std::string& path) {
  return has_extension(path, ".csv");
}

bool is_table(const std::string& path) {
  return is_csv(path) || has_extension(path, ".tsv");
}

void for_each_json_text(
    const std::string& path,
    const std::function<void(std::string_view text, uint64_t bytes_read)>& visit) {
  JsonLines lines(path);
  while (const std::optional<Json> line = lines.next()) {
    if (!holds(*line, "text", Json::Type::kString)) {
      require_string_text(*line);
      line->fail(
          "expected an object with \"text\", as in the first row; put other rows into "
          "another file");
    }
    visit(line->at("text").as_string(), lines.bytes_read());
  }
}

}  // namespace cleave::inline data
