#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

/// Hostile and odd files of all untrusted kinds, and the verdicts of their readers.
namespace cleave::test {

/// A file's bytes and its verdict.
struct HostileCase {
  std::string name;                     ///< description
  std::string bytes;                    ///< the file's contents
  std::string refusal;                  ///< part of the expected error message; empty: accepted
  std::function<std::string()> make{};  ///< makes large contents instead of `bytes`
};

/// The cases of one kind of file.
struct HostileSet {
  std::string kind;       ///< "safetensors"
  std::string file_name;  ///< name that its reader expects in a folder
  size_t least = 0;       ///< minimum number of cases
  double most_seconds = 0.1;
  uint64_t most_mib = 32;          ///< memory in addition to the file's bytes
  std::string seed{};              ///< a valid file
  bool detects_truncation = true;  ///< whether the reader detects a truncation at any byte
  std::vector<HostileCase> cases{};
  /// Reads the file in `folder` and all of its contents as the program does. Throws Error.
  std::function<void(const std::filesystem::path& folder)> read{};
};

/// Prints the kind, for test names.
inline std::ostream& operator<<(std::ostream& out, const HostileSet& set) {
  return out << set.kind;
}

HostileSet safetensors_set();
HostileSet torch_bin_set();
HostileSet gguf_set();
HostileSet index_set();
HostileSet config_set();
HostileSet tokenizer_set();
HostileSet csv_set();
HostileSet jsonl_set();

inline std::vector<HostileSet> hostile_sets() {
  return {safetensors_set(), torch_bin_set(), gguf_set(), index_set(),
          config_set(),      tokenizer_set(), csv_set(),  jsonl_set()};
}

/// `part` repeated `count` times.
inline std::string repeated(const std::string& part, size_t count) {
  std::string all;
  all.reserve(part.size() * count);
  for (size_t i = 0; i < count; ++i) all += part;
  return all;
}

/// `text` with the first `from` replaced by `to`; throws std::out_of_range if there is none.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace cleave::test
