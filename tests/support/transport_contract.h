#pragma once
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/comm/api/world.h"
#include "tests/support/contract_values.h"

namespace cleave::inline comm {

/// A way to run ranks with the contract of run_ranks(): threads, processes, hosts.
struct Transport {
  std::string name;
  std::function<void(int, const std::function<void(World&)>&, const RankOptions&)> run;
  bool moves_device_memory = false;  ///< the memory passed to groups counts as device memory
};

inline void PrintTo(const Transport& transport, std::ostream* out) {
  *out << transport.name;
}

/// Tests that every transport must pass. A test file includes this and instantiates it:
/// INSTANTIATE_TEST_SUITE_P(Threads, TransportContract, testing::Values(Transport{...}), ...).
class TransportContract : public testing::TestWithParam<Transport> {
 protected:
  /// Runs `body` on ranks; any failure of a rank fails the test.
  void run(int num_ranks, const std::function<void(World&)>& body) {
    GetParam().run(num_ranks, body, RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  }

  /// Runs `body` and returns the root cause that run_ranks() throws.
  std::optional<Error> run_to_failure(int num_ranks, const std::function<void(World&)>& body,
                                      double timeout_s = 20) {
    try {
      GetParam().run(num_ranks, body, RankOptions{.timeout_s = timeout_s, .flight_log_folder = ""});
    } catch (const Error& error) {
      return error;
    }
    return std::nullopt;
  }
};

namespace contract {

inline constexpr DType kDTypes[] = {DType::kF32, DType::kF64, DType::kBf16, DType::kF16,
                                    DType::kI64};

/// Small whole numbers, exact in every dtype; sums over four ranks stay below 128.
inline double number(int rank, int64_t i) {
  return static_cast<double>((rank + 1) * (i % 7 - 3));
}

inline std::shared_ptr<Group> all(World& world) {
  std::vector<int> ranks(static_cast<size_t>(world.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return world.group(ranks, "all");
}

inline Call call(std::string_view site) {
  return {.site = site, .shape = {}};
}

/// Expects `act` to throw Error(code) and returns the error's text.
inline std::string expect_error(Code code, const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown, expected " << name(code);
  return "";
}

/// Different widths; with three or more ranks that of rank 2 is zero.
inline std::vector<int64_t> uneven_widths(int num_ranks, int64_t unit) {
  std::vector<int64_t> widths;
  for (int r = 0; r < num_ranks; ++r) widths.push_back(r == 2 ? 0 : unit + r);
  return widths;
}

inline int64_t total(const std::vector<int64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

}  // namespace contract
}  // namespace cleave::inline comm

#include "tests/support/transport_contract_async.h"
#include "tests/support/transport_contract_data.h"
#include "tests/support/transport_contract_faults.h"
