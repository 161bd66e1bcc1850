// Row C13: what the kernel is asked to open while hostile index files are read, by strace.
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

/// The paths of files that were opened to be read, from the first hostile one on.
std::set<std::string> read_paths(const std::string& log) {
  const std::regex opened(
      R"re((?:openat\((AT_FDCWD|\d+), |open\()"([^"]*)", (O_RDONLY\S*).*= \d+)re");
  std::set<std::string> paths;
  std::istringstream lines(log);
  bool has_begun = false;
  for (std::string line; std::getline(lines, line);) {
    has_begun = has_begun || line.find("index.json") != std::string::npos;
    std::smatch parts;
    if (!has_begun || !std::regex_search(line, parts, opened)) continue;
    if (parts[3].str().find("O_DIRECTORY") == std::string::npos) paths.insert(parts[2]);
  }
  return paths;
}

TEST(HostileTrace, OfIndexFiles_OpensFilesOfTheFolderAlone) {
  const TempFolder folder;
  const std::string log = folder / "log";
  const Ran ran = run_program(
      {"/usr/bin/env", "strace", "-f", "-e", "trace=open,openat,openat2", "-s", "400", "-o", log,
       fs::read_symlink("/proc/self/exe"),
       "--gtest_filter=Files/Hostile.EveryFile_GetsItsVerdictSoonAndInLittleMemory/index_json"},
      {.deadline_s = 60});
  if (ran.exit_code != 0) GTEST_SKIP() << "strace does not run here: " << ran.err;
  std::set<std::string> names;
  for (const std::string& path : read_paths(internal::text_of(log))) {
    if (path.starts_with("/proc/self/")) continue;  // the test's own looks at its memory
    const bool is_index = path.ends_with("/model/model.safetensors.index.json");
    names.insert(is_index ? "the index" : path);
  }
  EXPECT_THAT(names, testing::IsSupersetOf({"the index", "one.safetensors", "two.safetensors"}));
  EXPECT_THAT(names, testing::IsSubsetOf({"the index", "one.safetensors", "two.safetensors",
                                          "empty.safetensors", "text.safetensors",
                                          "folder.safetensors", "pipe.safetensors"}));
}

}  // namespace
}  // namespace cleave::test
