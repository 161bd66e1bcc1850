#include "cleave/base/str.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cleave::str_test {
namespace {

TEST(Str, Lists_AreJoinedByCommas) {
  EXPECT_EQ(list_text(std::vector<int>{}), "");
  EXPECT_EQ(list_text(std::vector<std::string>{"", "b", ""}), ", b, ");
  EXPECT_EQ(shape_text(std::vector<int64_t>{2, -1, 3}), "[2, -1, 3]");
  EXPECT_EQ(shape_text(std::vector<int64_t>{}), "[]");
}

/// Separators as in German.
class German : public std::numpunct<char> {
  [[nodiscard]] char do_decimal_point() const override { return ','; }
  [[nodiscard]] char do_thousands_sep() const override { return '.'; }
  [[nodiscard]] std::string do_grouping() const override { return "\3"; }
};

TEST(Str, Numbers_DoNotDependOnTheGlobalLocale) {
  const std::locale before = std::locale::global(std::locale(std::locale(), new German));
  std::ostringstream plain;
  plain << 1234567;
  EXPECT_EQ(plain.str(), "1.234.567");
  EXPECT_EQ(str(1234567, ' ', 1.5), "1234567 1.5");
  EXPECT_EQ(list_text(std::vector<double>{1024, 0.5}), "1024, 0.5");
  EXPECT_EQ(fixed_text(12345.678, 1), "12345.7");
  std::locale::global(before);
}

// Oracle: printf.
TEST(Str, FixedText_IsThatOfPrintf) {
  EXPECT_EQ(fixed_text(-0.04, 1), "-0.0");
  EXPECT_EQ(fixed_text(2.5, 0), "2");
  EXPECT_EQ(fixed_text(1e15, 2), "1000000000000000.00");
  EXPECT_EQ(fixed_text(std::numeric_limits<double>::quiet_NaN(), 2), "nan");
}

TEST(Str, RoundedTo_KeepsTheDigits) {
  EXPECT_EQ(rounded_to(123456.0, 4), 123500.0);
  EXPECT_EQ(rounded_to(-1.23456e-9, 4), -1.235e-9);
  EXPECT_EQ(rounded_to(0, 4), 0);
  EXPECT_EQ(rounded_to(std::numeric_limits<double>::infinity(), 7),
            std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(rounded_to(std::numeric_limits<double>::quiet_NaN(), 7)));
}

}  // namespace
}  // namespace cleave::str_test
