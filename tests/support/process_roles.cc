#include "tests/support/process_roles.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sys/syscall.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "cleave/comm/bootstrap/rank_process.h"
#include "tests/support/forbidden_call.h"

namespace cleave::inline comm {
namespace {

constexpr int kTestFailed = 200;  // exit code of a rank in which an expectation failed
constexpr char kFieldEnd = '\x1f';
constexpr char kRunEnd = '\x1e';

std::map<std::string, std::function<int()>>& roles() {
  static std::map<std::string, std::function<int()>> all;
  return all;
}

/// The outcomes of the earlier runs of the current test, so that a rank process can skip them.
class PastRuns {
 public:
  static PastRuns& of_this_test() {
    static PastRuns runs;
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    if (runs.test_ != test) runs = PastRuns();
    runs.test_ = test;
    return runs;
  }

  void add(const std::optional<Abort>& cause) {
    if (cause) text_ += str(static_cast<int>(cause->code), kFieldEnd, cause->text);
    text_ += kRunEnd;
  }
  [[nodiscard]] const std::string& text() const { return text_; }

  /// In a rank process: skips the next run, and throws what it threw. False if the next run is the
  /// one that this process was started for.
  bool skip_next() {
    if (left_ == nullptr) left_ = std::getenv("CLEAVE_TEST_PAST_RUNS");
    if (*left_ == '\0') return false;
    std::string run;
    while (*left_ != kRunEnd) run += *left_++;
    ++left_;
    const size_t field = run.find(kFieldEnd);
    if (field == std::string::npos) return true;
    throw Error(static_cast<Code>(std::atoi(run.c_str())), run.substr(field + 1));
  }

 private:
  const testing::TestInfo* test_ = nullptr;
  std::string text_;
  const char* left_ = nullptr;
};

}  // namespace

ProcessRole::ProcessRole(std::string name, std::function<int()> run) {
  roles()[std::move(name)] = std::move(run);
}

std::optional<int> ProcessRole::run_named() {
  const char* name = std::getenv("CLEAVE_TEST_ROLE");
  if (name == nullptr) return std::nullopt;
  try {
    if (std::getenv("CLEAVE_TEST_WITHOUT_PIDFDS") != nullptr) {
      test::forbid_call(SYS_pidfd_open, ENOSYS);
    }
    return roles().at(name)();
  } catch (const Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}

std::string read_file(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string own_program() {
  char path[4096] = {};
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
  CLEAVE_CHECK(size > 0, Code::kIo, "/proc/self/exe cannot be read");
  return path;
}

LaunchOptions launch_of_role(int num_ranks, const std::string& role) {
  return {.num_ranks = num_ranks,
          .command = {own_program()},
          .environment = {"CLEAVE_TEST_ROLE=" + role}};
}

void run_processes(int num_ranks, const std::function<void(World&)>& body,
                   const RankOptions& options) {
  PastRuns& past = PastRuns::of_this_test();
  if (std::getenv("CLEAVE_TEST_PAST_RUNS") != nullptr) {
    if (past.skip_next()) return;
    const int code = run_rank(*read_environment(), body, options);
    // The test continues in the process that started this one.
    std::cout.flush();
    _exit(testing::Test::HasFailure() ? kTestFailed : code);
  }
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const LaunchOutcome outcome =
      launch_ranks({.num_ranks = num_ranks,
                    .command = {own_program(), "--gtest_brief=1",
                                str("--gtest_filter=", test->test_suite_name(), ".", test->name())},
                    .environment = {"CLEAVE_TEST_PAST_RUNS=" + past.text()}});
  past.add(outcome.cause);
  for (size_t rank = 0; rank < outcome.exit_codes.size(); ++rank) {
    EXPECT_NE(outcome.exit_codes[rank], kTestFailed) << "in rank " << rank;
  }
  if (outcome.cause) throw Error(outcome.cause->code, outcome.cause->text);
}

}  // namespace cleave::inline comm

int main(int argc, char** argv) {
  if (const auto code = cleave::ProcessRole::run_named()) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
