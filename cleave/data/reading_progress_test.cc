#include "cleave/data/reading_progress.h"

#include <string>

#include <gtest/gtest.h>

#include "cleave/file/atomic_write.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/temp_folder.h"

namespace cleave::reading_progress_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Files of 2 and 3 MiB, of which a MiB is read every 6 s: a line every ten seconds.
TEST(ReadingProgress, SeveralFiles_CountTogether) {
  const test::TempFolder folder;
  const std::string first = folder / "a", second = folder / "b";
  write_atomic(first, std::string(2 * kMiB, 'a'));
  write_atomic(second, std::string(3 * kMiB, 'b'));
  double now = 100;
  test::Captured out;
  {
    ReadingProgress progress({first, second}, {.unit = "read MiB", .clock = [&] { return now; }});
    for (const size_t mebibytes : {2U, 3U}) {
      for (size_t done = 1; done <= mebibytes; ++done) {
        now += 6;
        progress.note(done * kMiB);
      }
      progress.end_file();
    }
  }
  // The first call makes the display, whose first line comes ten seconds later. A MiB takes 6 s.
  EXPECT_EQ(out.take(), "read MiB 3/6  18s left\nread MiB 5/6  6.0s left\n");
}

TEST(ReadingProgress, ShortReading_IsNotShown) {
  const test::TempFolder folder;
  const std::string file = folder / "a";
  write_atomic(file, std::string(kMiB, 'a'));
  double now = 100;
  test::Captured out;
  ReadingProgress progress({file}, {.unit = "read MiB", .clock = [&] { return now; }});
  now += 0.9;
  progress.note(kMiB);
  EXPECT_EQ(out.take(), "");
}

}  // namespace
}  // namespace cleave::reading_progress_test
