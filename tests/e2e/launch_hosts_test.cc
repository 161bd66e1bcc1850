// `cleave launch --hosts`, with a script in place of ssh. The hosts of the first tests are
// addresses of this machine, those of the last are network namespaces, which need root.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using Words = std::vector<std::string>;

/// An executable script that is called as `ssh HOST COMMAND`.
std::string remote_shell(const TempFolder& folder, const std::string& script) {
  const std::string path = folder / "shell";
  std::ofstream(path) << "#!/bin/bash\n" << script << '\n';
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

std::string file_in(const TempFolder& folder, const std::string& name) {
  return folder / name;
}

// Not by exec: the command must end with its stdin, as under ssh, not with this script.
constexpr char kHere[] = "/bin/bash -c \"$2\"; exit $?";

Words launch_words(const std::string& shell, const std::string& hosts, int num_ranks,
                   const Words& more) {
  Words words{"launch", "--hosts", hosts, "-n", std::to_string(num_ranks), "--remote-shell", shell};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(LaunchHosts, EachRank_SeesItsPlace) {
  const TempFolder folder;
  const std::string text =
      "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR \"$1\" "
      "$CLEAVE_JOB_FD$CLEAVE_HOST_SHARE >" +
      file_in(folder, "$RANK");
  const RunResult ran =
      run_cleave(launch_words(remote_shell(folder, kHere), "user@127.0.0.1,127.0.0.2", 4,
                              {"--", "/bin/bash", "-c", text, "x", "it's one"}));
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(internal::text_of(folder / "0"), "0 4 0 2 0 127.0.0.1 it's one\n");
  EXPECT_EQ(internal::text_of(folder / "1"), "1 4 1 2 0 127.0.0.1 it's one\n");
  EXPECT_EQ(internal::text_of(folder / "2"), "2 4 0 2 1 127.0.0.1 it's one\n");
  EXPECT_EQ(internal::text_of(folder / "3"), "3 4 1 2 1 127.0.0.1 it's one\n");
}

TEST(LaunchHosts, CodeOfTheFailedRank_IsTheLaunchers) {
  const TempFolder folder;
  // Rank 2 fails; the others end because of it.
  const RunResult ran =
      run_cleave(launch_words(remote_shell(folder, kHere), "127.0.0.1,127.0.0.2", 4,
                              {"--max-restarts", "3", "--", "/bin/bash", "-c",
                               "if [ $RANK = 2 ]; then exit 9; fi; exit 6"}));
  EXPECT_EQ(ran.exit_code, 9);
  EXPECT_THAT(ran.err, HasSubstr("the ranks of 127.0.0.2 ended with exit code 9\n"));
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("restart 1")));
}

TEST(LaunchHosts, KilledRank_IsNamedByItsNumberInTheJob) {
  const TempFolder folder;
  const RunResult ran = run_cleave(
      launch_words(remote_shell(folder, kHere), "127.0.0.1,127.0.0.2", 4,
                   {"--", "/bin/bash", "-c", "if [ $RANK = 3 ]; then kill -9 $$; fi; exit 6"}));
  EXPECT_EQ(ran.exit_code, 137);
  EXPECT_THAT(ran.err, ContainsRegex("cleave: rank 3 \\(pid [0-9]+\\) was killed by signal 9"));
  EXPECT_THAT(ran.err, HasSubstr("cleave: the ranks of 127.0.0.2 ended with exit code 137\n"));
}

TEST(LaunchHosts, HostLostEarlier_IsNoCauseOfALaterFailure) {
  const TempFolder folder;
  const std::string shell =
      remote_shell(folder, "[ $1 = 127.0.0.2 ] && exit 255; /bin/bash -c \"$2\"; exit $?");
  const RunResult ran =
      run_cleave(launch_words(shell, "127.0.0.1,127.0.0.2", 2,
                              {"--max-restarts", "2", "--", "/bin/bash", "-c",
                               "if [ -z \"$CLEAVE_RESTARTS\" ]; then exit 6; fi; exit 1"}));
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.err,
            "cleave: restart 1 of 2: host 127.0.0.2 does not answer; 1 of 2 hosts continue with 1 "
            "rank\n"
            "cleave: restart 2 of 2: the ranks of 127.0.0.1 ended with exit code 1; 1 of 2 hosts "
            "continue with 1 rank\n"
            "cleave: the ranks of 127.0.0.1 ended with exit code 1\n");
}

/// Runs cleave WORDS in the background and, when the files ready.0 and ready.1 are in `folder`, the
/// shell script `then`; $pid is the program's.
RunResult with_script(const Words& words, const TempFolder& folder, const std::string& then) {
  Words all{"/bin/bash", "-c",
            "\"$0\" \"$@\" & pid=$!\nuntil [ -s " + file_in(folder, "ready.0") + " ] && [ -s " +
                file_in(folder, "ready.1") + " ]; do sleep 0.01; done\n" + then,
            test::program()};
  all.insert(all.end(), words.begin(), words.end());
  return run_program(all);
}

TEST(LaunchHosts, Sigterm_ReachesTheRanksOfAllHosts) {
  const TempFolder folder;
  const std::string rank = "trap 'kill $!; echo stopped >" + file_in(folder, "stopped.$RANK") +
                           "; exit 143' TERM; echo $$ >" + file_in(folder, "ready.$RANK") +
                           "; sleep 60 & wait";
  const RunResult ran =
      with_script(launch_words(remote_shell(folder, kHere), "127.0.0.1,127.0.0.2", 2,
                               {"--max-restarts", "3", "--", "/bin/bash", "-c", rank}),
                  folder, "kill -TERM $pid; wait $pid");
  EXPECT_EQ(ran.exit_code, 143);
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("cleave:")));
  EXPECT_EQ(internal::text_of(folder / "stopped.0"), "stopped\n");
  EXPECT_EQ(internal::text_of(folder / "stopped.1"), "stopped\n");
}

TEST(LaunchHosts, RankThatFailsWhileItStops_IsNotRestarted) {
  const TempFolder folder;
  const std::string rank = "trap 'kill $!; exit 1' TERM; echo $$ >" +
                           file_in(folder, "ready.$RANK") + "; sleep 60 & wait";
  const RunResult ran =
      with_script(launch_words(remote_shell(folder, kHere), "127.0.0.1,127.0.0.2", 2,
                               {"--max-restarts", "3", "--", "/bin/bash", "-c", rank}),
                  folder, "kill -TERM $pid; wait $pid");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.err, HasSubstr("cleave: the ranks of 127.0.0.1 ended with exit code 1\n"));
  EXPECT_THAT(ran.err, testing::Not(HasSubstr("restart 1")));
}

TEST(LaunchHosts, LauncherKilled_TakesTheRanksOfAllHostsWithIt) {
  const TempFolder folder;
  const std::string rank = "echo $$ >" + file_in(folder, "ready.$RANK") + "; exec sleep 60";
  const RunResult ran = with_script(launch_words(remote_shell(folder, kHere), "127.0.0.1,127.0.0.2",
                                                 2, {"--", "/bin/bash", "-c", rank}),
                                    folder,
                                    "kill -9 $pid; for r in 0 1; do while kill -0 $(cat " +
                                        file_in(folder, "ready.$r") +
                                        ") 2>/dev/null; do sleep 0.01; done; done; echo none left");
  EXPECT_EQ(ran.out, "none left\n");
}

TEST(LaunchHosts, HostThatDoesNotAnswer_IsNamedAfterTheRemoteShellsOneMessage) {
  const TempFolder folder;
  const std::string shell = remote_shell(
      folder,
      "[ $1 = 127.0.0.2 ] && { echo lost $1 >&2; exit 255; }; /bin/bash -c \"$2\"; exit $?");
  const RunResult ran =
      run_cleave(launch_words(shell, "127.0.0.1,127.0.0.2", 2, {"--", "/bin/true"}));
  EXPECT_EQ(ran.exit_code, 6);
  EXPECT_EQ(ran.err, "lost 127.0.0.2\ncleave: host 127.0.0.2 does not answer\n");
}

TEST(LaunchHosts, WrongHosts_AreRefused) {
  const auto error_of = [](const Words& words) {
    const RunResult ran = run_cleave(words);
    EXPECT_EQ(ran.exit_code, 2);
    return ran.err;
  };
  EXPECT_EQ(
      error_of({"launch", "--hosts", "a,b", "-n", "3", "--", "/bin/true"}),
      "cleave: -n 3 is not a multiple of the 2 --hosts; each gets the same number of ranks\n");
  EXPECT_EQ(error_of({"launch", "--hosts", "a,a", "-n", "2", "--", "/bin/true"}),
            "cleave: --hosts: a appears twice; name each host once\n");
  EXPECT_EQ(
      error_of({"launch", "--hosts", "a,-oProxyCommand", "-n", "2", "--", "/bin/true"}),
      "cleave: --hosts: '-oProxyCommand' is not a host; give names or addresses between commas, "
      "as in --hosts node0,node1\n");
  EXPECT_EQ(
      error_of({"launch", "--hosts", "a,b", "--remote-shell", " ", "-n", "2", "--", "/bin/true"}),
      "cleave: --remote-shell is empty; give a command, as in --remote-shell 'ssh -p "
      "2222'\n");
  EXPECT_EQ(error_of({"launch", "-n", "257", "--", "/bin/true"}),
            "cleave: -n 257 is 257 ranks on a host; expected at most 256\n");
}

/// Hosts 10.78.0.1 to 10.78.0.3: network namespaces at a bridge in a fourth one.
class ThreeHosts {
 public:
  ThreeHosts() {
    std::string script = "set -e; ip netns add " + name(0) + "; ip -n " + name(0) +
                         " link add bridge type bridge; ip -n " + name(0) + " link set bridge up\n";
    for (int host = 1; host <= 3; ++host) {
      const std::string at = name(host), port = str("port", host);
      script += "ip netns add " + at + "; ip link add cable netns " + at + " type veth peer name " +
                port + " netns " + name(0) + "; ip -n " + name(0) + " link set " + port +
                " master bridge up; ip -n " + at + " link set lo up; ip -n " + at + " addr add " +
                address(host) + "/24 dev cable; ip -n " + at + " link set cable up\n";
    }
    exist_ = shell(script) == 0;
  }
  ~ThreeHosts() {
    for (int host = 0; host <= 3; ++host) shell(removal(host));
  }
  ThreeHosts(const ThreeHosts&) = delete;
  ThreeHosts& operator=(const ThreeHosts&) = delete;

  [[nodiscard]] bool exist() const { return exist_; }
  static std::string address(int host) { return str("10.78.0.", host); }
  /// Runs a command on the host $1: `ip netns exec` fails if it is gone.
  static std::string remote_shell() {
    return "ip netns exec " + prefix() + "${1##*.} /bin/bash -c \"$2\"; exit $?";
  }
  /// A shell command that takes a host away for good: its cable, its processes, itself.
  static std::string removal(int host) {
    return "{ ip -n " + name(host) + " link del cable; ip netns pids " + name(host) +
           " | xargs -r kill -9; ip netns del " + name(host) + "; } 2>/dev/null";
  }

 private:
  static std::string prefix() { return "cleave-" + std::to_string(getpid()) + "-l"; }
  static std::string name(int host) { return prefix() + std::to_string(host); }
  static int shell(const std::string& command) {
    return run_program({"/bin/bash", "-c", command}).exit_code;
  }
  bool exist_ = false;
};

// Oracle: the same run without a failure, as threads of one process. The batches are the same, so
// losses differ by rounding only: other batches differ in the second digit.
TEST(LaunchHosts, HostLostForGood_TheRunContinuesOnTheOthersWithTheSameBatches) {
  const ThreeHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const std::string model = folder / "model.json", out = folder / "run";
  std::ofstream(model) << kTinyLlama;
  const Words of_run{"--model",      model, "--batch-size", "6",   "--tp", "2",   "--dp", "3",
                     "--save-every", "5",   "--steps",      "120", "--lr", "1e-3"};
  ASSERT_EQ(run_cleave(train(folder / "one", of_run)).exit_code, 0);
  Words words = launch_words(
      remote_shell(folder, ThreeHosts::remote_shell()),
      ThreeHosts::address(1) + "," + ThreeHosts::address(2) + "," + ThreeHosts::address(3), 6,
      {"--max-restarts", "1", "--", test::program()});
  const Words trained = train(out, of_run);
  words.insert(words.end(), trained.begin(), trained.end());
  Words all{"/bin/bash", "-c",
            "\"$0\" \"$@\" & pid=$!\nuntil grep -q '\"step\":8,' " + out +
                "/metrics.jsonl 2>/dev/null || ! kill -0 $pid; do sleep 0.02; done\n" +
                ThreeHosts::removal(2) + "\nwait $pid",
            test::program()};
  all.insert(all.end(), words.begin(), words.end());
  const RunResult ran = run_program(all);
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("cleave: restart 1 of 1: host 10.78.0.2 does not answer; 2 of 3 "
                                 "hosts continue with 4 ranks\n"));
  EXPECT_THAT(ran.err, HasSubstr("cleave: warning: 4 ranks instead of 6: dp=3 -> 2, tp=2, pp=1; "
                                 "the batch stays 6, in 2 micro-batches of up to 2 per rank\n"));
  EXPECT_THAT(ran.out, ContainsRegex("resumed after step [0-9]*[05] from "));
  const auto want = metrics_of(folder / "one"), got = metrics_of(out);
  ASSERT_EQ(want.size(), 120U);
  ASSERT_EQ(got.size(), 120U);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i]["loss"].get<double>(), want[i]["loss"].get<double>(), 1e-3) << i;
  }
}

TEST(LaunchHosts, BatchTooSmallForTheOtherRanks_IsRefusedInOneLine) {
  const TempFolder folder;
  const std::string model = folder / "model.json";
  std::ofstream(model) << kTinyLlama;
  // As after a restart on three ranks: tp 2 no longer divides them, and dp 3 needs 3 sequences.
  Words words{"launch", "-n", "3", "--", test::program()};
  const Words trained =
      train(folder / "run", {"--model", model, "--batch-size", "2", "--tp", "2", "--dp", "2"});
  words.insert(words.end(), trained.begin(), trained.end());
  const RunResult ran = run_cleave(words, {.environment = {"CLEAVE_RESTARTS=1"}});
  EXPECT_EQ(ran.exit_code, 3);
  EXPECT_THAT(ran.err, HasSubstr("a run of tp=2 x pp=1 x dp=2 cannot continue on 3 ranks: the "
                                 "batch of 2 sequences is too small to give each data-parallel "
                                 "rank one; start it on fewer ranks\n"));
}

}  // namespace
}  // namespace cleave::test
