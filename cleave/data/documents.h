#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace cleave {

/// What a data file holds.
enum class FileKind : uint8_t {
  kText,       ///< one document, its bytes as they are
  kJsonTexts,  ///< JSONL, a document a line in `text`
  kJsonRows,   ///< JSONL, a sample a line in `input_ids`
};

/// "text", "JSONL with \"text\"", "JSONL with \"input_ids\"".
std::string_view name(FileKind kind);

/// The kind, by the first line that is not blank: an object with `input_ids` (an array) or `text`
/// (a string), else text. A file named .jsonl is never text: Error(kFormat) with line and byte.
FileKind file_kind(const std::string& path);

/// Calls `visit` with each document of a file of texts, in order. Throws Error(kIo, kFormat) naming
/// file and line.
void for_each_document(const std::string& path, FileKind kind,
                       const std::function<void(std::string_view)>& visit);

}  // namespace cleave
