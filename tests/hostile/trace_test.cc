// Row C13: the files that are opened while hostile index files are read, by strace.
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/level.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

/// The paths of all attempts to open a file for reading, from the first hostile file on, whether it
/// exists or not.
std::set<std::string> read_paths(const std::string& log) {
  const std::regex opened(
      R"re(open(?:at2?)?\((?:AT_FDCWD, |\d+, )?"([^"]*)", \{?(?:flags=)?(O_RDONLY\S*))re");
  std::set<std::string> paths;
  std::istringstream lines(log);
  bool has_begun = false;
  for (std::string line; std::getline(lines, line);) {
    has_begun = has_begun || line.find("index.json") != std::string::npos;
    std::smatch parts;
    if (!has_begun || !std::regex_search(line, parts, opened)) continue;
    if (parts[2].str().find("O_DIRECTORY") == std::string::npos) paths.insert(parts[1]);
  }
  return paths;
}

TEST(HostileTrace, OfIndexFiles_OpensOnlyFilesOfTheFolder) {
  const RunResult tried = run_program({"/usr/bin/env", "strace", "-o", "/dev/null", "true"});
  if (tried.exit_code != 0) GTEST_SKIP() << "strace does not run here: " << tried.err;
  if (kIsInstrumented) GTEST_SKIP() << "the leak sanitizer cannot be traced";
  const TempFolder folder;
  const std::string log = folder / "log";
  const RunResult ran = run_program(
      {"/usr/bin/env", "strace", "-f", "-e", "trace=open,openat,openat2", "-s", "400", "-o", log,
       fs::read_symlink("/proc/self/exe"),
       "--gtest_filter=Files/Hostile.EveryFile_GetsItsVerdictSoonAndInLittleMemory/index_json"});
  EXPECT_EQ(ran.exit_code, 0) << ran.out << ran.err;
  const std::set<std::string> paths = read_paths(internal::text_of(log));
  EXPECT_THAT(paths, testing::IsSupersetOf({"one.safetensors", "two.safetensors"}));
  for (const std::string& path : paths) {
    if (path.starts_with("/proc/self/")) continue;  // the test reads its own memory use there
    const bool is_index = path.ends_with("/model/model.safetensors.index.json");
    EXPECT_TRUE(is_index || path.find('/') == std::string::npos) << path;
    EXPECT_THAT(path, testing::AllOf(testing::Ne("."), testing::Ne("..")));
  }
}

}  // namespace
}  // namespace cleave::test
