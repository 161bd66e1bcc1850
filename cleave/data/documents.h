#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline data {

/// The format of a data file.
enum class FileKind : uint8_t {
  kText,       ///< the whole file is one document
  kJsonTexts,  ///< JSONL, one document per line in `text`
  kJsonRows,   ///< JSONL, one sample per line in `input_ids`
};

/// "text", "JSONL with \"text\"", "JSONL with \"input_ids\"".
std::string_view name(FileKind kind);

/// The kind of a file, from its first line that is not blank: JSONL if that is an object with
/// `input_ids` (an array) or `text` (a string), else text. A file named .jsonl is never text:
/// throws Error(kFormat) with line and byte.
FileKind file_kind(const std::string& path);

/// "a.txt", or "a.txt and 2 more files", for messages about all data. `files` is not empty.
std::string names_of(const std::vector<std::string>& files);

/// Whether a file is a table by its name, NAME.csv or NAME.CSV.
bool is_csv(const std::string& path);
/// Whether a file is a table by its name, NAME.csv or NAME.tsv. Only CSV can be read.
bool is_table(const std::string& path);

/// Calls `visit` with each text of a file of kind kJsonTexts, in order, and the bytes of the file
/// that were read so far. Throws Error(kIo, kFormat) with file and line.
void for_each_json_text(
    const std::string& path,
    const std::function<void(std::string_view text, uint64_t bytes_read)>& visit);

}  // namespace cleave::inline data
