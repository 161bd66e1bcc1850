#include "cleave/base/byte_count.h"

#include <gtest/gtest.h>

namespace cleave::byte_count_test {
namespace {

TEST(ByteCount, ValidSizes_AreParsed) {
  EXPECT_EQ(bytes_from_text("5GB"), 5'000'000'000U);
  EXPECT_EQ(bytes_from_text("5gib"), uint64_t{5} << 30);
  EXPECT_EQ(bytes_from_text("200kb"), 200'000U);
  EXPECT_EQ(bytes_from_text("1MiB"), 1048576U);
  EXPECT_EQ(bytes_from_text("2TB"), 2'000'000'000'000U);
  EXPECT_EQ(bytes_from_text("1000"), 1000U);
  EXPECT_EQ(bytes_from_text("7B"), 7U);
}

TEST(ByteCount, InvalidSizes_AreRefused) {
  for (const char* text : {"", "0", "-5GB", "5 GB", "5G", "5XB", "GB", "5.5GB", "5GBB", "5iB",
                           "99999999999999999999", "99999999999TB"}) {
    EXPECT_EQ(bytes_from_text(text), std::nullopt) << text;
  }
}

TEST(BytesText, EachUnit_HasOneDigitBelowAHundred) {
  EXPECT_EQ(bytes_text(0), "0 bytes");
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1024), "1.0 KiB");
  EXPECT_EQ(bytes_text(1.5 * 1048576), "1.5 MiB");
  EXPECT_EQ(bytes_text(123.0 * 1073741824), "123 GiB");
  EXPECT_EQ(bytes_text(5000.0 * 1099511627776), "5000 TiB");
}

}  // namespace
}  // namespace cleave::byte_count_test
