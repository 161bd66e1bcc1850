#include "cleave/base/peak_rss.h"

#include <vector>

#include <gtest/gtest.h>

namespace cleave {
namespace {

TEST(PeakRss, MemoryThatWasLetGoOf_Counts) {
  constexpr size_t kBytes = size_t{64} << 20;
  { const std::vector<char> held(kBytes, 1); }
  EXPECT_GE(peak_rss_bytes(), static_cast<int64_t>(kBytes));
}

}  // namespace
}  // namespace cleave
