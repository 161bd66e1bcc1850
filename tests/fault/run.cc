#include "tests/fault/run.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <poll.h>
#include <span>
#include <thread>
#include <utility>

#include "cleave/base/hash.h"
#include "cleave/base/str.h"
#include "cleave/file/file.h"

namespace cleave::fault {
namespace {

namespace fs = std::filesystem;

ChildOptions options_of(const std::vector<std::string>& command,
                        const std::vector<std::string>& environment, const std::string& output) {
  ChildOptions options{
      .command = {"/bin/sh", "-c", "exec \"$0\" \"$@\" >\"$CLEAVE_FAULT_OUT\" 2>&1"},
      .environment = environment,
      .keeps_stdin = false};
  options.command.insert(options.command.end(), command.begin(), command.end());
  options.environment.push_back("CLEAVE_FAULT_OUT=" + output);
  return options;
}

}  // namespace

Run::Run(const std::vector<std::string>& command, const std::vector<std::string>& environment,
         std::string output)
    : launches_(command.size() > 1 && command[1] == "launch"),
      output_(std::move(output)),
      child_(options_of(command, environment, output_)) {}

std::vector<pid_t> Run::pids() const {
  std::vector<pid_t> found{child_.pid()};
  std::error_code gone;
  for (const auto& task : fs::directory_iterator(str("/proc/", child_.pid(), "/task"), gone)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) found.push_back(child);
  }
  return found;
}

std::vector<pid_t> Run::ranks() const {
  std::vector<pid_t> found = pids();
  // A launcher that has just started or restarts has no ranks for a moment.
  for (int tries = 0; launches_ && found.size() == 1 && tries < 2000; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    found = pids();
  }
  if (found.size() > 1) found.erase(found.begin());
  return found;
}

std::optional<int> Run::wait(double seconds) {
  pollfd ended{child_.pidfd(), POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(seconds * 1e3)) == 1) return child_.poll_exit();
  child_.send(SIGKILL);
  return std::nullopt;
}

std::string Run::text() const {
  std::ifstream in(output_);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string bits_of(const std::string& checkpoint) {
  std::vector<fs::path> files;
  std::error_code missing;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint, missing)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path());
  }
  if (files.empty()) return "";
  std::sort(files.begin(), files.end());
  Hasher hasher;
  for (const fs::path& path : files) {
    const std::string text = read_file(path);
    const std::string name = path.filename();
    hasher.update(std::as_bytes(std::span(name)));
    hasher.update(std::as_bytes(std::span(text)));
  }
  return to_hex(hasher.digest());
}

std::string newest_of(const std::string& run) {
  std::ifstream in(run + "/latest");
  std::string name;
  std::getline(in, name);
  return name.empty() ? "" : run + "/" + name;
}

}  // namespace cleave::fault
