#include "cleave/base/version.h"

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/paths.h"

namespace cleave::version_test {
namespace {

TEST(Version, IsThatOfTheProject) {
  std::stringstream text;
  text << std::ifstream(test::source_file("CMakeLists.txt")).rdbuf();
  const std::string project = text.str();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(
      project, found, std::regex(R"(project\(Cleave VERSION ([0-9]+\.[0-9]+\.[0-9]+) )")));
  EXPECT_EQ(version(), found[1].str());
}

}  // namespace
}  // namespace cleave::version_test
