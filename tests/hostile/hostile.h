#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

/// Files that someone made wrong, or odd, and what their readers must say: all untrusted kinds.
namespace cleave::test {

/// A file's bytes and its verdict.
struct HostileCase {
  std::string name;     ///< what is odd about it
  std::string bytes;    ///< of the file
  std::string refusal;  ///< part of the error's text, which is the reason; empty: accepted
  std::function<std::string()> make{};  ///< in place of `bytes` where these are many
};

/// The cases of one kind of file.
struct HostileSet {
  std::string kind;       ///< "safetensors"
  std::string file_name;  ///< under which its reader finds it in a folder
  size_t least = 0;       ///< as many cases there must be
  double most_seconds = 0.1;
  uint64_t most_mib = 32;   ///< of memory, beside the bytes of the file
  std::string seed{};       ///< a good file
  bool cut_is_seen = true;  ///< whether a reader knows a file that was cut anywhere
  std::vector<HostileCase> cases{};
  /// Reads the file in `folder` as the program does, and all that it holds. Throws Error.
  std::function<void(const std::filesystem::path& folder)> read{};
};

/// What a test's name shows of one.
inline std::ostream& operator<<(std::ostream& out, const HostileSet& set) {
  return out << set.kind;
}

HostileSet safetensors_set();
HostileSet torch_bin_set();
HostileSet index_set();
HostileSet config_set();
HostileSet tokenizer_set();
HostileSet csv_set();
HostileSet jsonl_set();

inline std::vector<HostileSet> hostile_sets() {
  return {safetensors_set(), torch_bin_set(), index_set(), config_set(),
          tokenizer_set(),   csv_set(),       jsonl_set()};
}

/// `part` over and over.
inline std::string repeated(const std::string& part, size_t count) {
  std::string all;
  all.reserve(part.size() * count);
  for (size_t i = 0; i < count; ++i) all += part;
  return all;
}

/// `text` with the first `from` in it replaced; an exception when there is none.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

}  // namespace cleave::test
