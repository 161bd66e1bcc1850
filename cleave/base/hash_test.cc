#include "cleave/base/hash.h"

#include <vector>

#include <gtest/gtest.h>

namespace cleave::hash_test {
namespace {

// The algorithm's specification gives the hash of the empty input.
TEST(Hash, EmptyInput_GivesThePublishedValue) {
  EXPECT_EQ(hash_bytes(std::string_view()), 0x2d06800538d394c2u);
  EXPECT_EQ(Hasher().digest(), 0x2d06800538d394c2u);
}

TEST(Hash, BytesInPieces_GiveTheHashOfTheWhole) {
  std::vector<std::byte> bytes(5000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 7);
  const uint64_t whole = hash_bytes(bytes);
  for (const size_t step : {1u, 7u, 64u, 255u, 1024u, 4999u}) {
    Hasher hasher;
    for (size_t at = 0; at < bytes.size(); at += step) {
      hasher.update(std::span(bytes).subspan(at, std::min(step, bytes.size() - at)));
    }
    EXPECT_EQ(hasher.digest(), whole) << "step " << step;
  }
  bytes[4321] ^= std::byte{1};
  EXPECT_NE(hash_bytes(bytes), whole);
}

TEST(Hex, RoundTrip_AndRefusals) {
  EXPECT_EQ(to_hex(0), "0000000000000000");
  EXPECT_EQ(to_hex(0x0123456789abcdefu), "0123456789abcdef");
  for (const uint64_t value : {uint64_t{0}, uint64_t{1}, UINT64_MAX, uint64_t{1} << 63}) {
    EXPECT_EQ(from_hex(to_hex(value)), value);
  }
  for (const char* bad : {"", "0", "00000000000000000", "000000000000000G", "000000000000000A"}) {
    EXPECT_FALSE(from_hex(bad)) << bad;
  }
}

}  // namespace
}  // namespace cleave::hash_test
