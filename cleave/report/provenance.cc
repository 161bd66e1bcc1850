#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <unistd.h>

#include "cleave/report/record.h"

namespace cleave::inline report {
namespace {

namespace fs = std::filesystem;

// The first line of a file; "" if it cannot be read.
std::string first_line(const fs::path& path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

// The rest of `line` after `start`; "" if it begins otherwise.
std::string after(const std::string& line, const std::string& start) {
  return line.starts_with(start) ? line.substr(start.size()) : "";
}

std::string hash_or_none(const std::string& text) {
  const bool is_hash =
      (text.size() == 40 || text.size() == 64) &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  return is_hash ? text : "";
}

// git moves references from files of their own into this one: lines "HASH NAME".
std::string packed_reference(const fs::path& git, const std::string& name) {
  std::ifstream file(git / "packed-refs");
  for (std::string line; std::getline(file, line);) {
    if (line.ends_with(' ' + name)) return hash_or_none(line.substr(0, line.find(' ')));
  }
  return "";
}

}  // namespace

std::string utc_text(std::time_t time) {
  std::tm parts{};
  std::array<char, 32> text{};
  if (gmtime_r(&time, &parts) == nullptr) return "unknown";
  const size_t size = std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return {text.data(), size};
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

std::string git_commit(const fs::path& folder) {
  std::error_code problem;
  fs::path root = fs::absolute(folder, problem);
  while (!fs::exists(root / ".git", problem)) {
    if (!root.has_relative_path()) return "";
    root = root.parent_path();
  }
  fs::path git = root / ".git";
  if (!fs::is_directory(git, problem)) git = root / after(first_line(git), "gitdir: ");
  const std::string head = first_line(git / "HEAD");
  const std::string name = after(head, "ref: ");
  if (name.empty()) return hash_or_none(head);
  // A worktree's own folder names the one that holds the branches.
  const std::string shared = first_line(git / "commondir");
  if (!shared.empty()) git /= shared;
  const std::string hash = hash_or_none(first_line(git / name));
  return hash.empty() ? packed_reference(git, name) : hash;
}

}  // namespace cleave::inline report
