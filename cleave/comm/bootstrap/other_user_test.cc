// What another user of this machine, or a reader of its logs, can get from a job: rows H3 and H5 of
// docs/design/reliability-notes.md. Skipped without root, which is needed to become the other user.
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/comm/bootstrap/rank_process.h"
#include "cleave/comm/bootstrap/rendezvous_dir.h"
#include "tests/support/level.h"
#include "tests/support/process_roles.h"
#include "tests/support/running_launch.h"
#include "tests/support/started_job.h"

namespace cleave::other_user_test {
namespace {

namespace fs = std::filesystem;
using test::eventually;
using test::RunningLaunch;
using testing::HasSubstr;
using testing::Not;

constexpr uid_t kNobody = 65534;

const char* variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? "" : value;
}

/// What this process can open or signal of process `pid`, by name.
std::vector<std::string> accessible_of(pid_t pid) {
  std::vector<std::string> taken;
  const std::string process = str("/proc/", pid, "/");
  const auto try_open = [&](const std::string& path) {
    const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (file.is_open()) taken.push_back(path);
  };
  for (const char* file : {"mem", "environ"}) try_open(process + file);
  for (int fd = 0; fd < 64; ++fd) try_open(str(process, "fd/", fd));
  char byte = 0;
  const iovec here{&byte, 1}, there{nullptr, 1};
  // The address is invalid: EFAULT means that access was allowed.
  if (process_vm_readv(pid, &here, 1, &there, 1, 0) >= 0 || errno == EFAULT) {
    taken.push_back(str("the memory of ", pid));
  }
  if (kill(pid, 0) == 0) taken.push_back(str("signals to ", pid));
  return taken;
}

/// Reports what it can access of the processes in CLEAVE_TEST_PIDS and of the socket
/// CLEAVE_TEST_SOCKET.
const ProcessRole kIntruder("intruder", [] {
  std::vector<std::string> taken;
  std::istringstream pids(variable("CLEAVE_TEST_PIDS"));
  for (pid_t pid = 0; pids >> pid;) {
    for (std::string& one : accessible_of(pid)) taken.push_back(std::move(one));
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, variable("CLEAVE_TEST_SOCKET"), sizeof(address.sun_path) - 1);
  const Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (address.sun_path[0] != '\0' &&
      connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
    taken.emplace_back(address.sun_path);
  }
  std::ofstream report(variable("CLEAVE_TEST_REPORT"), std::ios::app);
  for (const std::string& one : taken) report << one << '\n';
  return taken.empty() ? 0 : 1;
});

/// Creates a file of kind CLEAVE_TEST_KIND at CLEAVE_TEST_PATH.
const ProcessRole kFileMaker("file_maker", [] {
  const std::string kind = variable("CLEAVE_TEST_KIND"), path = variable("CLEAVE_TEST_PATH");
  umask(0);
  if (kind == "open folder") return mkdir(path.c_str(), 0777);
  if (kind == "folder") return mkdir(path.c_str(), 0700);
  if (kind == "link") return symlink("/tmp", path.c_str());
  if (kind == "pipe") return mkfifo(path.c_str(), 0666);
  return Descriptor(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666)).is_open() ? 0 : 1;
});

const ProcessRole kIdle("idle", [] { return 0; });

/// A rank that joins the others and stays until CLEAVE_TEST_FOLDER holds "go".
const ProcessRole kStays("stays", [] {
  const Descriptor errors(
      open(variable("CLEAVE_TEST_STDERR"), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  dup2(errors.get(), STDERR_FILENO);
  return run_rank(*read_environment(), [](World& world) {
    const auto group = world.group({0, 1}, "dp");
    group->barrier({.site = "joined", .shape = {}});
    const std::string folder = variable("CLEAVE_TEST_FOLDER");
    std::ofstream(str(folder, "/joined.", world.rank())) << getpid() << std::flush;
    eventually([&] { return fs::exists(folder + "/go"); });
  });
});

/// Runs this program in a role, as this user or as nobody. Returns its exit code, -1 if it cannot
/// be started.
int run_role(const std::string& role, bool as_nobody, const std::vector<std::string>& more = {}) {
  ChildOptions options{.command = {own_program()}, .environment = {"CLEAVE_TEST_ROLE=" + role}};
  options.environment.insert(options.environment.end(), more.begin(), more.end());
  if (as_nobody) {
    options.command = {"setpriv", str("--reuid=", kNobody), str("--regid=", kNobody),
                       "--clear-groups", own_program()};
  }
  try {
    ChildProcess child(options);
    pollfd ended{child.pidfd(), POLLIN, 0};
    return poll(&ended, 1, 10'000) == 1 ? child.poll_exit().value_or(-1) : -1;
  } catch (const Error&) {
    return -1;  // setpriv is not installed
  }
}

bool can_be_nobody() {
  return geteuid() == 0 && run_role("idle", true) == 0;
}

/// A folder that everybody may write to, like /tmp.
struct OpenFolder {
  OpenFolder() { fs::permissions(folder / "", fs::perms::all | fs::perms::sticky_bit); }
  [[nodiscard]] std::string report() const { return folder / "report"; }
  TestFolder folder;
};

// Row H3: nothing of a launched job can be opened, because nothing has a name and /proc is closed.
TEST(OtherUser, LaunchedJob_GivesNothingToAnotherUser) {
  if (!can_be_nobody()) GTEST_SKIP() << "needs root and setpriv to be another user";
  const OpenFolder open;
  RunningLaunch running("loop", 2);
  const std::string pids = str("CLEAVE_TEST_PIDS=", running.launcher().pid(), ' ', running.rank(0),
                               ' ', running.rank(1));
  EXPECT_EQ(run_role("intruder", true, {pids, "CLEAVE_TEST_REPORT=" + open.report()}), 0)
      << read_file(open.report());
  // The same attempts succeed as the job's own user, so they are real attempts.
  EXPECT_EQ(run_role("intruder", false, {pids, "CLEAVE_TEST_REPORT=" + open.report()}), 1);
  running.launcher().send(SIGTERM);
  EXPECT_EQ(running.wait(), 143) << running.errors();
}

// Row H3: ranks of another launcher rendezvous over a socket that only their user can reach.
TEST(OtherUser, Rendezvous_IsClosedToAnotherUser) {
  if (!can_be_nobody()) GTEST_SKIP() << "needs root and setpriv to be another user";
  const OpenFolder open;
  test::StartedJob job;
  const std::vector<std::string> runtime{"XDG_RUNTIME_DIR=" + open.folder / ""};
  job.start(0, 2, runtime);
  std::string socket;
  ASSERT_TRUE(eventually([&] {
    for (const auto& entry : fs::directory_iterator(open.folder / "")) {
      const fs::path path = entry.path() / "socket";
      std::error_code error;
      if (fs::is_socket(path, error)) socket = path;
    }
    return !socket.empty();
  }));
  const std::vector<std::string> target{"CLEAVE_TEST_SOCKET=" + socket,
                                        "CLEAVE_TEST_REPORT=" + open.report()};
  EXPECT_EQ(run_role("intruder", true, target), 0) << read_file(open.report());
  EXPECT_EQ(run_role("intruder", false, target), 1) << "this user cannot connect either";
  job.start(1, 2, runtime);
  EXPECT_EQ(job.wait(), std::vector<int>(2, 0)) << job.errors(0);
}

// Row H3: paths that another user created first are refused with that user's number.
TEST(OtherUser, NamesMadeByAnotherUser_AreRefusedAndNamed) {
  if (!can_be_nobody()) GTEST_SKIP() << "needs root and setpriv to be another user";
  for (const std::string kind : {"open folder", "folder", "link", "pipe", "file"}) {
    SCOPED_TRACE(kind);
    const OpenFolder open;
    setenv("XDG_RUNTIME_DIR", (open.folder / "").c_str(), 1);
    Environment environment;
    environment.master_port = 3;
    RendezvousDir dir(environment);
    unsetenv("XDG_RUNTIME_DIR");
    ASSERT_EQ(run_role("file_maker", true,
                       {"CLEAVE_TEST_KIND=" + kind, "CLEAVE_TEST_PATH=" + dir.folder()}),
              0);
    try {
      dir.try_lock();
      ADD_FAILURE() << "taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kIo);
      EXPECT_THAT(error.what(), HasSubstr(dir.folder()));
      EXPECT_THAT(error.what(), HasSubstr("choose another MASTER_PORT"));
    }
  }
}

/// What another process can read of `pid`: its command line and its environment.
std::string seen_of(pid_t pid) {
  return read_file(str("/proc/", pid, "/cmdline")) + read_file(str("/proc/", pid, "/environ"));
}

/// Whether the writable memory of a process, as a core file would hold it, contains these bytes.
bool memory_holds(pid_t pid, const std::string& bytes) {
  const Descriptor memory(open(str("/proc/", pid, "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  std::ifstream maps(str("/proc/", pid, "/maps"));
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    char dash = 0;
    std::string mode;
    std::istringstream(line) >> std::hex >> begin >> dash >> end >> mode;
    if (mode.find('w') == std::string::npos || end - begin > (uint64_t{256} << 20)) continue;
    std::string part(end - begin, '\0');
    const ssize_t got = pread(memory.get(), part.data(), part.size(), static_cast<off_t>(begin));
    if (got > 0 && part.find(bytes) != std::string::npos) return true;
  }
  return false;
}

// Row H5: the job's token is in no command line, variable or message, and is wiped from memory.
TEST(Secrets, TokenOfAJob_IsNowhereAfterTheRendezvous) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers keep copies of memory";
  const std::string token = "a token of thirty-two characters";
  const TestFolder folder;
  const std::string path = folder / "token";
  std::ofstream(path) << token;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  test::StartedJob job;
  for (const int rank : {0, 1}) {
    job.start(rank, 2,
              {"CLEAVE_TEST_ROLE=stays", "LOCAL_WORLD_SIZE=1", "MASTER_PORT=22031",
               "CLEAVE_TEST_FOLDER=" + folder / "", "CLEAVE_TOKEN_FILE=" + path});
  }
  for (const char* rank : {"joined.0", "joined.1"}) {
    std::string text;
    ASSERT_TRUE(eventually([&] { return !(text = read_file(folder / rank)).empty(); }));
    const pid_t pid = std::atoi(text.c_str());
    EXPECT_THAT(seen_of(pid), HasSubstr("CLEAVE_TOKEN_FILE=" + path));
    EXPECT_THAT(seen_of(pid), Not(HasSubstr(token)));
    EXPECT_TRUE(memory_holds(pid, path)) << "the memory search does not work";
    EXPECT_FALSE(memory_holds(pid, token)) << rank;
  }
  std::ofstream(folder / "go") << "go";
  EXPECT_EQ(job.wait(), std::vector<int>(2, 0));
  EXPECT_THAT(job.errors(0) + job.errors(1), Not(HasSubstr(token)));
}

}  // namespace
}  // namespace cleave::other_user_test
