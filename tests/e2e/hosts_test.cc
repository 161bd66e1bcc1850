// Training over two hosts: two network namespaces of this machine, joined by a veth pair. Needs the
// right to make namespaces (root); skipped without it.
#include <algorithm>
#include <array>
#include <fstream>
#include <future>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/program.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using Words = std::vector<std::string>;

/// Hosts 10.77.0.1 and 10.77.0.2, which reach only each other; the destructor removes them.
class TwoHosts {
 public:
  TwoHosts() {
    const std::string a = name(0), b = name(1);
    exist_ = shell("ip netns add " + a + " && ip netns add " + b + " && ip link add cable0 netns " +
                   a + " type veth peer name cable1 netns " + b) == 0;
    for (int host = 0; host < 2 && exist_; ++host) {
      const std::string in = "ip -n " + name(host) + " ", cable = "cable" + std::to_string(host);
      exist_ = shell(in + "addr add 10.77.0." + std::to_string(host + 1) + "/24 dev " + cable +
                     " && " + in + "link set lo up && " + in + "link set " + cable + " up") == 0;
    }
  }
  ~TwoHosts() {
    shell("ip netns del " + name(0));
    shell("ip netns del " + name(1));
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  [[nodiscard]] bool exist() const { return exist_; }

  /// Runs `cleave WORDS` on a host; writes its pid to `pid_file`.
  [[nodiscard]] RunResult run(int host, const Words& words, const Words& variables,
                              const std::string& pid_file = "/dev/null") const {
    Words all{"/bin/bash", "-c",
              "echo $$ > " + pid_file + "; exec ip netns exec " + name(host) + " \"$0\" \"$@\"",
              test::program()};
    all.insert(all.end(), words.begin(), words.end());
    return run_program(all, {.environment = variables});
  }

  /// From now on both hosts lose one in thirty packets, by netem, or by an ingress filter that
  /// draws a random number (classic BPF: load RANDOM, compare with 2^32 / 30, drop or pass).
  /// Returns false if the kernel supports neither.
  [[nodiscard]] bool lose_packets() const {
    const std::string filter = "'4,32 0 0 4294963256,37 1 0 143165577,6 0 0 2,6 0 0 4294967295'";
    bool is_lossy = true;
    for (int host = 0; host < 2; ++host) {
      const std::string tc = "tc -n " + name(host) + " ", dev = " dev cable" + std::to_string(host);
      is_lossy = is_lossy && (shell(tc + "qdisc add" + dev + " root netem loss 3.3%") == 0 ||
                              shell(tc + "qdisc add" + dev + " clsact && " + tc + "filter add" +
                                    dev + " ingress bpf da bytecode " + filter) == 0);
    }
    return is_lossy;
  }
  /// Retransmitted TCP segments of both hosts.
  [[nodiscard]] int64_t num_retransmitted() const {
    int64_t count = 0;
    for (int host = 0; host < 2; ++host) {
      const RunResult ran = run_program(
          {"/bin/bash", "-c",
           "ip netns exec " + name(host) + " awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp"});
      count += ran.out.empty() ? 0 : std::stoll(ran.out);
    }
    return count;
  }
  /// Bytes that a host received over its loopback, and over the cable.
  [[nodiscard]] int64_t loopback_bytes(int host) const { return received_bytes(host, "lo"); }
  [[nodiscard]] int64_t cable_bytes(int host) const {
    return received_bytes(host, "cable" + std::to_string(host));
  }
  void cut_the_cable() const { shell("ip -n " + name(0) + " link set cable0 down"); }

 private:
  static std::string name(int host) {
    return "cleave-" + std::to_string(getpid()) + "-" + std::to_string(host);
  }
  static int shell(const std::string& command) {
    return run_program({"/bin/bash", "-c", command}).exit_code;
  }
  static int64_t received_bytes(int host, const std::string& device) {
    const RunResult ran = run_program({"/bin/bash", "-c",
                                       "ip netns exec " + name(host) + " awk '$1 == \"" + device +
                                           ":\" { print $2 }' /proc/net/dev"});
    return ran.out.empty() ? -1 : std::stoll(ran.out);
  }
  bool exist_ = false;
};

/// The environment variables that a launcher sets for rank `rank` of two on two hosts.
Words variables_of(const std::string& launcher, int rank) {
  const std::string r = std::to_string(rank);
  Words variables{"MASTER_ADDR=10.77.0.1", "MASTER_PORT=29500"};
  const std::map<std::string, Words> forms{
      {"by hand", {"RANK=" + r, "WORLD_SIZE=2"}},
      {"torchrun",
       {"RANK=" + r, "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "GROUP_RANK=" + r,
        "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_USE_AGENT_STORE=True"}},
      {"mpirun",
       {"OMPI_COMM_WORLD_RANK=" + r, "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_RANK=0",
        "OMPI_COMM_WORLD_LOCAL_SIZE=1"}},
      {"srun",
       {"SLURM_PROCID=" + r, "SLURM_NTASKS=2", "SLURM_LOCALID=0", "SLURM_NODEID=" + r,
        "SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_STEP_NUM_NODES=2",
        "SLURM_STEP_TASKS_PER_NODE=1(x2)", "SLURM_STEP_NODELIST=10.77.0.[1-2]"}}};
  if (launcher == "srun") variables.clear();
  const Words& form = forms.at(launcher);
  variables.insert(variables.end(), form.begin(), form.end());
  return variables;
}

/// Results of a run with one rank on each host.
struct HostResults {
  RunResult first, second;
};

HostResults run_both(const TwoHosts& hosts, const Words& words, const std::string& launcher) {
  auto second = std::async(std::launch::async,
                           [&] { return hosts.run(1, words, variables_of(launcher, 1)); });
  RunResult first = hosts.run(0, words, variables_of(launcher, 0));
  return {std::move(first), second.get()};
}

// Oracle: the same ranks as threads of one process. Sums add in rank order, so all bits are the
// same.
TEST(Hosts, TensorParallelTraining_GivesTheLossesOfOneHost) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const Words steps{"--tp", "2", "--steps", "10", "--dtype", "bf16"};
  ASSERT_EQ(run_cleave(train(folder / "one", steps)).exit_code, 0);
  const auto want = metrics_of(folder / "one");
  ASSERT_EQ(want.size(), 10U);
  // mpirun's variables alone start no MPI.
  Words over_tcp = steps;
  over_tcp.insert(over_tcp.end(), {"--transport", "tcp"});
  for (const std::string launcher : {"by hand", "torchrun", "mpirun", "srun"}) {
    SCOPED_TRACE(launcher);
    const std::string out = folder / launcher;
    const HostResults ran = run_both(hosts, train(out, over_tcp), launcher);
    ASSERT_EQ(ran.first.exit_code, 0) << ran.first.err;
    ASSERT_EQ(ran.second.exit_code, 0) << ran.second.err;
    const auto got = metrics_of(out);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << "step " << i + 1;
      EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << "step " << i + 1;
    }
  }
}

/// Returns once step 3 is in the metrics of a run.
void wait_for_step_3(const std::string& run) {
  const RunResult ran = run_program(
      {"/bin/bash", "-c",
       "until grep -q '\"step\":3,' " + run + "/metrics.jsonl 2>/dev/null; do sleep 0.05; done"});
  EXPECT_EQ(ran.exit_code, 0);
}

/// The environment variables of rank `rank` of four, two on each host.
Words variables_of_four(int rank) {
  return {str("RANK=", rank),   "WORLD_SIZE=4",          str("LOCAL_RANK=", rank % 2),
          "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=10.77.0.1", "MASTER_PORT=29500"};
}

std::vector<RunResult> run_four(const TwoHosts& hosts, const Words& words) {
  std::vector<std::future<RunResult>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&hosts, &words, rank] {
      return hosts.run(rank / 2, words, variables_of_four(rank));
    }));
  }
  std::vector<RunResult> out;
  for (auto& rank : ranks) out.push_back(rank.get());
  return out;
}

// Oracles: the same ranks as threads of one process, and the closed form of the bytes: each of six
// layers sums 4 times 4 x 256 tokens of 256 floats over tp, 25 MB a step. What remains on a host's
// loopback is the measurement of the transport at the start, and heartbeats.
TEST(Hosts, TensorParallelInsideAHost_UsesNoSocket) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const Words layout{"--model", "llama-tiny", "--tp",         "2", "--dp",      "2",
                     "--steps", "6",          "--batch-size", "8", "--seq-len", "256"};
  ASSERT_EQ(run_cleave(train(folder / "one", layout)).exit_code, 0);
  for (const RunResult& ran : run_four(hosts, train(folder / "two", layout))) {
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  }
  const auto want = metrics_of(folder / "one"), got = metrics_of(folder / "two");
  ASSERT_EQ(got.size(), 6U);
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << i;
    EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << i;
  }
  constexpr int64_t kSumsOverTp = int64_t{6} * 6 * 4 * 4 * 256 * 256 * 4;
  for (const int host : {0, 1}) {
    const int64_t bytes = hosts.loopback_bytes(host);
    EXPECT_LT(bytes, kSumsOverTp / 4) << "host " << host;
    note_measured("bytes over the loopback of host ", host, ": ", bytes);
  }
}

// Embeddings of 257 ids; in each of six layers q, k, v and o, the MLP and two norms; a norm.
constexpr int64_t kWeightsOfTiny =
    int64_t{256} * (257 + 6 * (256 + 2 * 128 + 256 + 3 * 688 + 2) + 1);  // 4.42 million

constexpr int kNumSteps = 12;

/// Runs 2 and kNumSteps steps with run(steps) and expects that a host receives `want` bytes in a
/// step over the cable. The difference of the runs leaves out the start, which differs by a
/// megabyte or so.
template <class Run>
void expect_bytes_of_a_step(const TwoHosts& hosts, int64_t want, const Run& run) {
  constexpr std::array<int, 3> kSteps{0, 2, kNumSteps};
  std::array<std::array<int64_t, 3>, 2> received{};
  for (size_t i = 0; i < 3; ++i) {
    if (kSteps.at(i) > 0) run(kSteps.at(i));
    for (const int host : {0, 1}) {
      received.at(static_cast<size_t>(host)).at(i) = hosts.cable_bytes(host);
    }
  }
  for (const int host : {0, 1}) {
    const auto& own = received.at(static_cast<size_t>(host));
    const int64_t bytes = (own[2] - own[1] - (own[1] - own[0])) / (kNumSteps - 2);
    // Headers, heartbeats and small collectives come on top.
    EXPECT_GT(bytes, want * 95 / 100) << "host " << host;
    EXPECT_LT(bytes, want * 13 / 10) << "host " << host;
    note_measured("bytes that host ", host, " received over the cable in a step: ", bytes);
  }
}

/// Expects that two runs of `num` steps have the same losses and norms.
void expect_same_steps(const std::string& run, const std::string& other, size_t num) {
  const auto got = metrics_of(run), want = metrics_of(other);
  ASSERT_EQ(got.size(), num);
  ASSERT_EQ(want.size(), num);
  for (size_t i = 0; i < num; ++i) {
    EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << i;
    EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << i;
  }
}

// Oracles: the same ranks as threads of one process, and the closed form of the bytes: each host
// sends its sum of the gradients, or the result, to the other one once, not once for each of its
// ranks.
TEST(Hosts, DataParallelOverHosts_SendsTheGradientsOnceEachWay) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const auto run_of = [&](const std::string& out, int steps) {
    return train(folder / out,
                 {"--model", "llama-tiny", "--dp", "4", "--steps", std::to_string(steps)});
  };
  ASSERT_EQ(run_cleave(run_of("one", kNumSteps)).exit_code, 0);
  // Once for each rank would be twice.
  expect_bytes_of_a_step(hosts, kWeightsOfTiny * 4, [&](int steps) {
    for (const RunResult& ran : run_four(hosts, run_of(str("steps-", steps), steps))) {
      EXPECT_EQ(ran.exit_code, 0) << ran.err;
    }
  });
  expect_same_steps(folder / str("steps-", kNumSteps), folder / "one", kNumSteps);
}

// Oracles: the same ranks as threads of one process, and the closed form of the bytes: each host
// sends half of its gradients and half of the sums, in two bytes an element.
TEST(Hosts, GradientsInBf16_TakeTwoBytesAnElementBetweenHosts) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const auto run_of = [&](const std::string& out, int steps) {
    return train(folder / out, {"--model", "llama-tiny", "--dp", "2", "--reduce-dtype", "bf16",
                                "--steps", std::to_string(steps)});
  };
  ASSERT_EQ(run_cleave(run_of("one", kNumSteps)).exit_code, 0);
  expect_bytes_of_a_step(hosts, kWeightsOfTiny * 2, [&](int steps) {
    const HostResults ran = run_both(hosts, run_of(str("steps-", steps), steps), "by hand");
    EXPECT_EQ(ran.first.exit_code, 0) << ran.first.err;
    EXPECT_EQ(ran.second.exit_code, 0) << ran.second.err;
  });
  expect_same_steps(folder / str("steps-", kNumSteps), folder / "one", kNumSteps);
}

// The other rank of the host waits in shared memory, those of the other host at a socket.
TEST(Hosts, RankKilledOfTwoOnAHost_EndsAllOthersWithItsName) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const std::string out = folder / "run", pid_file = folder / "pid";
  const Words words = train(out, {"--tp", "2", "--dp", "2", "--steps", "100000"});
  std::vector<std::future<RunResult>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      return hosts.run(rank / 2, words, variables_of_four(rank),
                       rank == 3 ? pid_file : "/dev/null");
    }));
  }
  wait_for_step_3(out);
  run_program({"/bin/bash", "-c", "kill -9 $(cat " + pid_file + ")"});
  EXPECT_EQ(ranks[3].get().exit_code, 137);
  for (size_t rank = 0; rank < 3; ++rank) {
    const RunResult ran = ranks[rank].get();
    EXPECT_EQ(ran.exit_code, 6) << ran.err;
    EXPECT_NE(ran.err.find("rank 3 (pid "), std::string::npos) << ran.err;
    EXPECT_NE(ran.err.find(") died"), std::string::npos) << ran.err;
  }
}

/// Kills rank 1 of a run; rank 0 must end within `limit_s` and name it.
void expect_killed_rank_is_named(const TwoHosts& hosts, double limit_s) {
  const TempFolder folder;
  const std::string out = folder / "run", pid_file = folder / "pid";
  const Words words = train(out, {"--tp", "2", "--steps", "100000"});
  auto second = std::async(std::launch::async, [&] {
    return hosts.run(1, words, variables_of("by hand", 1), pid_file);
  });
  double ended = 0;
  auto first = std::async(std::launch::async, [&] {
    RunResult ran = hosts.run(0, words, variables_of("by hand", 0));
    ended = monotonic_s();
    return ran;
  });
  wait_for_step_3(out);
  const double killed = monotonic_s();
  run_program({"/bin/bash", "-c", "kill -9 $(cat " + pid_file + ")"});
  EXPECT_EQ(second.get().exit_code, 137);
  const RunResult ran = first.get();
  EXPECT_EQ(ran.exit_code, 6) << ran.err;
  EXPECT_NE(ran.err.find("rank 1 (pid "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(" at 10.77.0.2) died, last seen "), std::string::npos) << ran.err;
  EXPECT_LT(ended - killed, limit_s);
  note_measured("N6 killed rank detected and the other ended after ", ended - killed, " s");
}

TEST(Hosts, RankKilledOnOneHost_EndsTheOtherWithItsName) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  // 0.25 s to detect it; the rest is for unloading libtorch on a busy machine.
  expect_killed_rank_is_named(hosts, 1.5);
}

// Row N6. Oracle: the same ranks as threads of one process.
TEST(Hosts, LostPackets_CostTimeButNoBits) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  if (!hosts.lose_packets()) GTEST_SKIP() << "tc can lose no packets here";
  const TempFolder folder;
  const Words steps{"--tp", "2", "--steps", "10"};
  ASSERT_EQ(run_cleave(train(folder / "one", steps)).exit_code, 0);
  const HostResults ran = run_both(hosts, train(folder / "two", steps), "by hand");
  ASSERT_EQ(ran.first.exit_code, 0) << ran.first.err;
  ASSERT_EQ(ran.second.exit_code, 0) << ran.second.err;
  const auto want = metrics_of(folder / "one"), got = metrics_of(folder / "two");
  ASSERT_EQ(got.size(), 10U);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << i;
  EXPECT_GT(hosts.num_retransmitted(), 0);
  note_measured("N6 10 steps over a cable that loses one packet in 30: ", ran.first.seconds, " s, ",
                hosts.num_retransmitted(), " segments sent again");
}

// Row N6: over such a link a killed rank is detected after one or two retransmissions.
TEST(Hosts, RankKilledBehindALossyCable_EndsTheOtherWithItsName) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  if (!hosts.lose_packets()) GTEST_SKIP() << "tc can lose no packets here";
  expect_killed_rank_is_named(hosts, 1.5 + 2);
}

// After a restart, ranks rendezvous first and then set up: a failure of setup on one host is
// reported on both.
TEST(Hosts, SetUpThatFailsAfterARestart_EndsBothWithItsCause) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const std::string out = folder / "run";
  const Words words = train(out, {"--tp", "2", "--steps", "4", "--save-every", "2"});
  ASSERT_EQ(run_cleave(words).exit_code, 0);
  const auto restarted = [&](const Words& first_words, const Words& second_words) {
    const auto run = [&](int host, const Words& own) {
      Words variables = variables_of("torchrun", host);
      variables.emplace_back("TORCHELASTIC_RESTART_COUNT=1");
      return hosts.run(host, own, variables);
    };
    auto second = std::async(std::launch::async, [&] { return run(1, second_words); });
    RunResult first = run(0, first_words);
    return HostResults{std::move(first), second.get()};
  };
  const auto with = [&](const std::string& flag, const std::string& value) {
    Words other = words;
    *(std::find(other.begin(), other.end(), flag) + 1) = value;
    return other;
  };
  std::ofstream(folder / "bad.jsonl") << "{\"text\": 7}\n";
  struct Case {
    Words first, second;
    int first_code, second_code;  // 6: the other host failed
    std::string message;          // on both hosts
  };
  const std::vector<Case> cases{
      {words, with("--data", folder / "bad.jsonl"), 6, 4, "bad.jsonl"},
      {with("--data", folder / "bad.jsonl"), words, 4, 6, "bad.jsonl"},
      {words, with("--batch-size", "6"), 6, 3, "rank 1 has --batch-size 6, rank 0 4"},
      {with("--tp", "3"), with("--tp", "3"), 0, 0,
       ""},  // continues with the two ranks that are left
      {words, words, 0, 0, ""}};
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(str("case ", i));
    const HostResults ran = restarted(cases[i].first, cases[i].second);
    EXPECT_EQ(ran.first.exit_code, cases[i].first_code) << ran.first.err;
    EXPECT_EQ(ran.second.exit_code, cases[i].second_code) << ran.second.err;
    EXPECT_NE(ran.first.err.find(cases[i].message), std::string::npos) << ran.first.err;
    EXPECT_NE(ran.second.err.find(cases[i].message), std::string::npos) << ran.second.err;
  }
}

TEST(Hosts, CableCut_EndsBothRanksAfterTheTimeout) {
  const TwoHosts hosts;
  if (!hosts.exist()) GTEST_SKIP() << "network namespaces cannot be made here";
  const TempFolder folder;
  const std::string out = folder / "run";
  const Words words = train(out, {"--tp", "2", "--steps", "100000", "--timeout", "2"});
  auto both = std::async(std::launch::async, [&] { return run_both(hosts, words, "by hand"); });
  wait_for_step_3(out);
  hosts.cut_the_cable();
  const double cut = monotonic_s();
  const HostResults ran = both.get();
  EXPECT_LT(monotonic_s() - cut, 6);
  // The error depends on which rank waits: a missing rank (7) or a lost connection (6).
  for (const RunResult& one : {ran.first, ran.second}) {
    EXPECT_TRUE(one.exit_code == 6 || one.exit_code == 7) << one.exit_code;
    EXPECT_NE(one.err.find("rank "), std::string::npos) << one.err;
  }
}

}  // namespace
}  // namespace cleave::test
