#include "cleave/comm/bootstrap/environment.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::environment_test {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<Environment> read(const Variables& variables) {
  return read_environment([&](const char* name) {
    const auto at = variables.find(name);
    return at == variables.end() ? nullptr : at->second.c_str();
  });
}

std::string refusal(Code code, const Variables& variables) {
  try {
    read(variables);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

TEST(Environment, RestartsOfEachLauncher_AreCounted) {
  const Variables torch{{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"SLURM_RESTART_COUNT", "2"}};
  EXPECT_EQ(read(torch)->num_restarts, 0);  // the batch job was requeued, not this job inside it
  Variables restarted = torch;
  restarted["TORCHELASTIC_RESTART_COUNT"] = "3";
  EXPECT_EQ(read(restarted)->num_restarts, 3);
  restarted["CLEAVE_RESTARTS"] = "4";
  EXPECT_EQ(read(restarted)->num_restarts, 4);
  const Variables step{{"SLURM_PROCID", "0"},
                       {"SLURM_NTASKS", "1"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_JOB_ID", "7"},
                       {"SLURM_RESTART_COUNT", "2"}};
  EXPECT_EQ(read(step)->num_restarts, 2);
}

TEST(Environment, WithoutALauncher_IsNothing) {
  EXPECT_FALSE(read({{"PATH", "/bin"}, {"MASTER_ADDR", "127.0.0.1"}}).has_value());
}

TEST(Environment, OfTorchrun_IsReadWhole) {
  const auto found = read({{"RANK", "3"},
                           {"WORLD_SIZE", "4"},
                           {"LOCAL_RANK", "1"},
                           {"LOCAL_WORLD_SIZE", "2"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "29501"},
                           {"TORCHELASTIC_RUN_ID", "abc"},
                           {"GROUP_RANK", "1"},
                           {"CLEAVE_JOB_FD", "7"}});
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->world_size, 4);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->master_addr, "10.0.0.1");
  EXPECT_EQ(found->master_port, 29501);
  EXPECT_EQ(found->job_id, "abc");
  EXPECT_EQ(found->host, "1");
  EXPECT_EQ(found->job_fd, 7);
}

TEST(Environment, RankAndWorldSizeAlone_AreOneHostAtALoopbackAddressOnly) {
  const auto here = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}});
  EXPECT_EQ(here->local_world_size, 2);
  EXPECT_EQ(here->local_rank, 1);
  const auto pod = read({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-0.svc"}});
  EXPECT_EQ(pod->local_world_size, 1);
  EXPECT_EQ(pod->local_rank, 0);
}

// srun --mpi=pmi2 sets these, too; a job of MPICH's own launcher inside an allocation has its own.
TEST(Environment, OfSrunWithPmi2_HasSlurmsHosts) {
  Variables variables{{"PMI_RANK", "3"},
                      {"PMI_SIZE", "4"},
                      {"SLURM_PROCID", "3"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_LOCALID", "1"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                      {"SLURM_STEP_NODELIST", "a,b"},
                      {"SLURM_JOB_ID", "7"}};
  const auto step = read(variables);
  EXPECT_EQ(step->rank, 3);
  EXPECT_EQ(step->local_rank, 1);
  EXPECT_EQ(step->local_world_size, 2);
  EXPECT_TRUE(step->starts_mpi);
  variables.insert({{"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}});
  const auto mpiexec = read(variables);
  EXPECT_EQ(mpiexec->rank, 3);
  EXPECT_EQ(mpiexec->local_world_size, 1);
}

TEST(Environment, OfMpisLaunchers_SaysThatTheyStartMpi) {
  EXPECT_TRUE(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})->starts_mpi);
  EXPECT_TRUE(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})->starts_mpi);
  EXPECT_FALSE(
      read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}})->starts_mpi);
  // torchrun's variables count first, and so does its choice of hosts.
  EXPECT_FALSE(
      read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}})->starts_mpi);
}

// Oracle: Open MPI's mpirun sets OMPI_*, MPICH's PMI_*, srun --mpi=pmix PMIX_* and pmi2 PMI_*.
TEST(Environment, OfMpisLaunchers_NamesTheMpiThatTheyStart) {
  EXPECT_EQ(read({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}})->mpi, "openmpi");
  EXPECT_EQ(read({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})->mpi, "mpich");
  Variables step{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_EQ(read(step)->mpi, "");
  step["PMIX_RANK"] = "0";
  EXPECT_EQ(read(step)->mpi, "openmpi");
  step.erase("PMIX_RANK");
  step["PMI_RANK"] = "0";
  EXPECT_EQ(read(step)->mpi, "mpich");
  EXPECT_EQ(read({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"PMI_RANK", "0"}})->mpi, "mpich");
}

TEST(Environment, OfOpenMpi_IsRead) {
  const auto found = read({{"OMPI_COMM_WORLD_RANK", "2"},
                           {"OMPI_COMM_WORLD_SIZE", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                           {"PMIX_RANK", "2"},
                           {"PMIX_NAMESPACE", "job.1"}});
  EXPECT_EQ(found->rank, 2);
  EXPECT_EQ(found->world_size, 3);
  EXPECT_EQ(found->local_world_size, 3);
  EXPECT_EQ(found->job_id, "job.1");
}

TEST(Environment, OfMpich_IsRead) {
  const auto found = read(
      {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}});
  EXPECT_EQ(found->rank, 1);
  EXPECT_EQ(found->world_size, 2);
  EXPECT_EQ(found->local_rank, 1);
}

TEST(Environment, OfASlurmStep_DistinguishesHosts) {
  Variables step{{"SLURM_PROCID", "5"},         {"SLURM_NTASKS", "99"},
                 {"SLURM_STEP_NUM_TASKS", "6"}, {"SLURM_LOCALID", "1"},
                 {"SLURM_STEP_ID", "0"},        {"SLURM_STEP_NUM_NODES", "3"},
                 {"SLURM_JOB_ID", "77"},        {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"}};
  const auto found = read(step);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->world_size, 6);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->local_world_size, 2);
  EXPECT_EQ(found->job_id, "77.0");
  step["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(read(step)->local_world_size, 6);
}

TEST(Environment, OfASlurmStepOverHosts_SetsTheRendezvousAddress) {
  Variables step{{"SLURM_PROCID", "2"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_STEP_NUM_TASKS", "3"},
                 {"SLURM_NTASKS", "3"},
                 {"SLURM_JOB_ID", "77"},
                 {"SLURM_STEP_ID", "0"},
                 {"SLURM_STEP_NUM_NODES", "2"},
                 {"SLURM_STEP_TASKS_PER_NODE", "1,2"}};
  for (const auto& [list, first] :
       std::vector<std::pair<std::string, std::string>>{{"gpu[03-07,9],cpu1", "gpu03"},
                                                        {"a[1,3]-x.org,b", "a1-x.org"},
                                                        {"one,two[1-2]", "one"},
                                                        {"alone", "alone"}}) {
    step["SLURM_STEP_NODELIST"] = list;
    const auto found = read(step);
    EXPECT_EQ(found->master_addr, first);
    EXPECT_EQ(found->host, "1");
    EXPECT_EQ(found->local_world_size, 2);
    EXPECT_GE(found->master_port, 20000);
    EXPECT_LT(found->master_port, 30000);
  }
  step["SLURM_STEP_TASKS_PER_NODE"] = "1";  // has no entry for the second node
  step["SLURM_LOCALID"] = "0";
  EXPECT_EQ(read(step)->local_world_size, 1);
  step["MASTER_ADDR"] = "10.0.0.1";
  step["MASTER_PORT"] = "5";
  EXPECT_EQ(read(step)->master_addr, "10.0.0.1");
  EXPECT_EQ(read(step)->master_port, 5);
}

TEST(Environment, OfTorchrunThatListensItself_UsesTheNextPort) {
  const auto found = read({{"RANK", "1"},
                           {"WORLD_SIZE", "2"},
                           {"LOCAL_RANK", "0"},
                           {"LOCAL_WORLD_SIZE", "1"},
                           {"MASTER_ADDR", "10.0.0.1"},
                           {"MASTER_PORT", "29500"},
                           {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                           {"CLEAVE_TOKEN_FILE", "/run/token"}});
  EXPECT_EQ(found->master_port, 29501);
  EXPECT_EQ(found->token_file, "/run/token");
}

TEST(Environment, OfASlurmBatchScript_IsNotARank) {
  EXPECT_FALSE(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).has_value());
}

TEST(Environment, ImpossibleValues_AreRefusedByTheirNames) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(Code::kShape, {{"RANK", "4"}, {"WORLD_SIZE", "4"}}),
              HasSubstr("RANK=4 with WORLD_SIZE=4; RANK must be in [0, 4)"));
  EXPECT_THAT(refusal(Code::kShape, {{"RANK", "-1"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK=-1"));
  EXPECT_THAT(refusal(Code::kShape, {{"RANK", "0"}, {"WORLD_SIZE", "0"}}),
              HasSubstr("WORLD_SIZE=0; it must be at least 1"));
  EXPECT_THAT(refusal(Code::kUsage, {{"RANK", "1x"}, {"WORLD_SIZE", "4"}}),
              HasSubstr("RANK='1x'; expected a whole number"));
  EXPECT_THAT(refusal(Code::kUsage, {{"RANK", "1"}}), HasSubstr("WORLD_SIZE is not"));
  EXPECT_THAT(refusal(Code::kUsage, {{"WORLD_SIZE", "2"}}), HasSubstr("RANK is not"));
  EXPECT_THAT(refusal(Code::kUsage, {{"OMPI_COMM_WORLD_RANK", "1"}}),
              HasSubstr("OMPI_COMM_WORLD_SIZE is not"));
  EXPECT_THAT(
      refusal(Code::kShape,
              {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}),
      HasSubstr("LOCAL_RANK=2"));
  EXPECT_THAT(refusal(Code::kUsage, {{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}),
              HasSubstr("WORLD_SIZE='99999999999'"));
}

TEST(LocalRank, InEveryForm_IsTakenOutOfTheCommandLine) {
  using Lines = std::vector<std::string>;
  Lines split{"a", "--local-rank", "3", "b"}, joined{"--local_rank=2"}, none{"--local", "x"};
  EXPECT_EQ(take_local_rank(split), 3);
  EXPECT_EQ(split, (Lines{"a", "b"}));
  EXPECT_EQ(take_local_rank(joined), 2);
  EXPECT_TRUE(joined.empty());
  EXPECT_EQ(take_local_rank(none), std::nullopt);
  EXPECT_EQ(none.size(), 2U);
  Lines truncated{"--local-rank"}, bad{"--local-rank=one"};
  EXPECT_THROW(take_local_rank(truncated), Error);
  EXPECT_THROW(take_local_rank(bad), Error);
}

TEST(LocalRank, ThatDiffersFromTheEnvironment_IsRefusedWithBoth) {
  Environment environment;
  environment.local_rank = 1;
  check_local_rank(environment, 1);
  check_local_rank(environment, std::nullopt);
  try {
    check_local_rank(environment, 0);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_THAT(error.what(), testing::HasSubstr("--local-rank=0 but LOCAL_RANK=1"));
  }
}

}  // namespace
}  // namespace cleave::environment_test
