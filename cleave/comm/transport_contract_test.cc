#include "cleave/comm/transport_contract.h"

#include "cleave/comm/process_roles.h"

namespace cleave {
namespace {

std::string transport_name(const testing::TestParamInfo<Transport>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(Threads, TransportContract,
                         testing::Values(Transport{"threads", run_ranks}), transport_name);

INSTANTIATE_TEST_SUITE_P(Processes, TransportContract,
                         testing::Values(Transport{"processes", run_processes}), transport_name);

}  // namespace
}  // namespace cleave
