#include "cleave/comm/launch/host_share.h"

#include <gtest/gtest.h>

#include "cleave/base/error.h"

namespace cleave::host_share_test {
namespace {

std::optional<HostShare> read(const char* value) {
  return read_host_share([value](const char*) { return value; });
}

TEST(HostShare, Text_ReadsBackAsTheShare) {
  const HostShare share{.first_rank = 2,
                        .world_size = 6,
                        .host = 1,
                        .master_port = 29500,
                        .master_addr = "node0.cluster"};
  EXPECT_EQ(text_of(share), "2,6,1,29500,node0.cluster");
  const auto found = read("2,6,1,29500,node0.cluster");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->first_rank, 2);
  EXPECT_EQ(found->world_size, 6);
  EXPECT_EQ(found->host, 1);
  EXPECT_EQ(found->master_port, 29500);
  EXPECT_EQ(found->master_addr, "node0.cluster");
}

TEST(HostShare, WithoutAVariable_IsNothing) {
  EXPECT_FALSE(read(nullptr).has_value());
  EXPECT_FALSE(read("").has_value());
}

TEST(HostShare, OtherText_IsRefused) {
  for (const char* text : {"2", "2,6,1,29500", "2,6,x,29500,node0", ",,,,"}) {
    try {
      read(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kUsage) << text;
    }
  }
}

}  // namespace
}  // namespace cleave::host_share_test
