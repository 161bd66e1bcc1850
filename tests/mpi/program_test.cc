// The program under mpirun. Each rank counts as a host of its own, although all are on one machine.
#include "tests/support/program.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/paths.h"
#include "tests/support/train_program.h"

namespace cleave::test {
namespace {

using testing::HasSubstr;
using Words = std::vector<std::string>;

/// Runs `cleave WORDS` on two ranks, after the commands of `setup` in the shell of each.
RunResult run_two(const std::string& setup, const Words& words) {
  Words all{CLEAVE_MPIRUN,  "-n", "2", "/bin/sh", "-c", setup + "; exec \"$0\" \"$@\"",
            test::program()};
  all.insert(all.end(), words.begin(), words.end());
  // Open MPI: any number of ranks on any number of cores, also as root.
  return run_program(all, {.environment = {"MASTER_ADDR=127.0.0.1", "OMPI_ALLOW_RUN_AS_ROOT=1",
                                           "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
                                           "OMPI_MCA_rmaps_base_oversubscribe=1",
                                           "OMPI_MCA_btl_vader_single_copy_mechanism=none"}});
}

// The variables of the MPI under test.
const bool kIsOpenMpi = CLEAVE_MPI == std::string_view("openmpi");
const std::string kRank = kIsOpenMpi ? "$OMPI_COMM_WORLD_RANK" : "$PMI_RANK";

/// One rank on each host.
const std::string kTwoHosts =
    kIsOpenMpi ? "export OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
               : "export MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1";

// Oracle: the same ranks as threads of one process. No MASTER_PORT: only over MPI do the ranks
// agree on a port.
TEST(MpiRun, TrainingOverTwoHosts_GivesTheBitsOfOneHost) {
  const TempFolder folder;
  for (const Words& layout : {Words{"--dp", "2"}, Words{"--tp", "2", "--dtype", "bf16"}}) {
    Words steps{"--steps", "6"};
    steps.insert(steps.end(), layout.begin(), layout.end());
    const std::string one = folder / ("one" + layout[0]), two = folder / ("two" + layout[0]);
    const RunResult alone = run_cleave(train(one, steps));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    const RunResult ran = run_two(kTwoHosts, train(two, steps));
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
    const auto want = metrics_of(one), got = metrics_of(two);
    ASSERT_EQ(want.size(), 6U);
    ASSERT_EQ(got.size(), 6U);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << "step " << i + 1;
      EXPECT_EQ(got[i]["grad_norm"], want[i]["grad_norm"]) << "step " << i + 1;
    }
  }
}

// Oracle: the same ranks with the sums of their own order. Both are sums of two numbers for each
// gradient, which have one value; so the option changes nothing here but who adds.
TEST(MpiRun, FastSumsOfTwoRanks_GiveTheBitsOfOneHost) {
  const TempFolder folder;
  const Words words{"--steps", "6", "--dp", "2"};
  const RunResult alone = run_cleave(train(folder / "one", words));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  Words fast = words;
  fast.emplace_back("--fast-sums");
  const RunResult ran = run_two(kTwoHosts, train(folder / "two", fast));
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  const auto want = metrics_of(folder / "one"), got = metrics_of(folder / "two");
  ASSERT_EQ(want.size(), 6U);
  ASSERT_EQ(got.size(), 6U);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i]["loss"], want[i]["loss"]) << i;
}

// mpirun returns the exit code of the first failure, whichever rank ends first.
TEST(MpiRun, RanksWithDifferentOptions_EndWithTheCodeOfTheMismatch) {
  const TempFolder folder;
  Words words = train(folder / "run", {"--dp", "2", "--steps", "3"});
  const RunResult ran =
      run_two(kTwoHosts + "; [ " + kRank + " = 0 ] || set -- \"$@\" --seed 7", words);
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("rank 1 has --seed 7"));
}

TEST(MpiRun, RankOfAnotherLauncher_IsRefused) {
  const TempFolder folder;
  const RunResult ran =
      run_cleave(train(folder / "run", {"--dp", "2", "--transport", "mpi"}),
                 {.environment = {"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1",
                                  "MASTER_ADDR=127.0.0.1", "MASTER_PORT=29999",
                                  "OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "PMIX_RANK="}});
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("--transport mpi: rank 1 of 2 was not started by "));
  EXPECT_THAT(ran.err, HasSubstr("start all ranks with its mpirun or with srun --mpi="));
}

#ifdef CLEAVE_ONLY_MPI
// Oracle: the message of TCP's rendezvous, which needs an address.
TEST(MpiRun, LauncherOfAnotherMpi_LeavesAutoToTcp) {
  const Words mpich{"PMI_RANK=0", "PMI_SIZE=2", "MPI_LOCALRANKID=0", "MPI_LOCALNRANKS=1"};
  const Words open_mpi{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2",
                       "OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  const TempFolder folder;
  const RunResult ran = run_cleave(train(folder / "run", {"--dp", "2"}),
                                   {.environment = kIsOpenMpi ? mpich : open_mpi});
  EXPECT_EQ(ran.exit_code, 2) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("the hosts use TCP, not MPI: Cleave is built with "));
  EXPECT_THAT(ran.err, HasSubstr("need MASTER_ADDR"));
}
#endif

// As with an MPI of another kind, whose processes do not find each other.
TEST(MpiRun, WorldThatIsNotTheLaunchers_IsRefused) {
  const TempFolder folder;
  const RunResult ran =
      run_two("export RANK=" + kRank + " WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1",
              train(folder / "run", {"--dp", "4", "--transport", "mpi"}));
  EXPECT_EQ(ran.exit_code, 3) << ran.err;
  EXPECT_THAT(ran.err, HasSubstr("of 4 is rank "));
  EXPECT_THAT(ran.err, HasSubstr("of 2 in "));
}

}  // namespace
}  // namespace cleave::test
