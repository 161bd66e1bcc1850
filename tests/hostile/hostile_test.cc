// Every hostile file gets the verdict of its table, in little time and memory.
#include "tests/hostile/hostile.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <malloc.h>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/runtime/step_recorder.h"
#include "tests/support/level.h"
#include "tests/support/memory.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// The error message; nullopt if the file was accepted.
std::optional<std::string> refusal_of(const HostileSet& set, const fs::path& folder) {
  try {
    set.read(folder);
    return std::nullopt;
  } catch (const Error& error) {
    const bool is_absent = std::string_view(error.what()).find("No such") != std::string::npos;
    EXPECT_EQ(error.code(), is_absent ? Code::kIo : Code::kFormat) << error.what();
    return error.what();
  }
}

/// Factor of the time limits: 1, or more in a build with a sanitizer and under valgrind, where
/// memory cannot be measured either.
double slowdown() {
  if (kIsInstrumented) return 20;
  const char* preloaded = std::getenv("LD_PRELOAD");  // NOLINT(concurrency-mt-unsafe)
  if (preloaded == nullptr) return 1;
  return std::string_view(preloaded).find("vgpreload") == std::string_view::npos ? 1 : 100;
}

/// How much slower the machine is now than a quiet one, at least 1: the time to build a map of
/// 20,000 short texts. Like the readers, it allocates small blocks and follows pointers. Other
/// programs of the host slow that down for seconds, and that adds to the CPU time.
double present_slowdown() {
  constexpr double kQuietSeconds = 0.009;  // of an AMD EPYC (Zen 3)
  const double start = thread_cpu_s();
  std::map<std::string, std::string> texts;
  for (int i = 0; i < 20'000; ++i)
    texts.emplace(str("tensor ", i * 7919 % 20'000), str("value ", i));
  const bool is_whole = texts.size() == 20'000;
  const double seconds = thread_cpu_s() - start;
  return is_whole ? std::max(1., seconds / kQuietSeconds) : 1;
}

class Hostile : public testing::TestWithParam<HostileSet> {
 protected:
  void SetUp() override { fs::create_directory(folder / "model"); }
  [[nodiscard]] fs::path model() const { return folder / "model"; }

  /// Writes a new file each time: truncating an old one makes some file systems wait for the disk.
  void write(const std::string& bytes) const {
    const fs::path path = model() / GetParam().file_name;
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    ASSERT_EQ(fs::file_size(path), bytes.size());
  }

  TempFolder folder;
};

TEST_P(Hostile, EveryFile_GetsItsVerdictSoonAndInLittleMemory) {
  const HostileSet& set = GetParam();
  uint64_t most = 0;  // maximum memory in addition to the file's bytes
  for (const HostileCase& c : set.cases) {
    SCOPED_TRACE(c.name);
    write(c.make ? c.make() : c.bytes);
    const uint64_t file_bytes = fs::file_size(model() / set.file_name);
    ::malloc_trim(0);  // reused memory of earlier files would not be measured
    const bool sees_peak = reset_peak() && slowdown() == 1;
    const uint64_t before = resident_bytes("VmRSS");
    std::optional<std::string> refusal;
    const auto cpu_seconds = [&] {
      const double start = thread_cpu_s();
      refusal = refusal_of(set, model());
      return thread_cpu_s() - start;
    };
    double seconds = cpu_seconds();
    const uint64_t peak = resident_bytes("VmHWM");
    EXPECT_EQ(refusal.has_value(), !c.refusal.empty()) << refusal.value_or("accepted");
    if (refusal) {
      EXPECT_THAT(*refusal, HasSubstr(c.refusal));
    }
    const double limit = set.most_seconds * slowdown();
    for (int repeat = 0; repeat < 4 && seconds >= limit; ++repeat) {
      seconds = cpu_seconds() / present_slowdown();
    }
    EXPECT_LT(seconds, limit);
    if (sees_peak) {
      EXPECT_LE(peak, before + file_bytes + (set.most_mib << 20));
      most = std::max(most, peak - std::min(peak, before + file_bytes));
    }
  }
  std::printf("measured: %zu hostile %s files, at most %.1f MiB in addition to their bytes\n",
              set.cases.size(), set.kind.c_str(), static_cast<double>(most) / (1 << 20));
  EXPECT_GE(set.cases.size(), set.least);
}

// A truncated file is refused; only truncated line-based texts may be valid.
TEST_P(Hostile, EveryTruncation_IsRefusedOrAValidFile) {
  const std::string& whole = GetParam().seed;
  write(whole);
  EXPECT_EQ(refusal_of(GetParam(), model()), std::nullopt);
  for (size_t size = 0; size < whole.size(); ++size) {
    write(whole.substr(0, size));
    const bool is_refused = refusal_of(GetParam(), model()).has_value();
    EXPECT_TRUE(is_refused || !GetParam().detects_truncation) << "the first " << size << " bytes";
  }
}

TEST_P(Hostile, PipeOrFolderInItsPlace_IsRefusedWithoutWaiting) {
  const fs::path path = model() / GetParam().file_name;
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_THROW(GetParam().read(model()), Error);
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_THROW(GetParam().read(model()), Error);
}

// A file with one changed byte is refused, or everything that is read lies inside the file.
TEST_P(Hostile, EveryChangedByte_IsRefusedOrReads) {
  const std::string& whole = GetParam().seed;
  const size_t step = 1 + whole.size() / 400;
  int num_accepted = 0;
  for (const int change : {0x01, 0x10, 0x80, 0xff}) {
    for (size_t at = static_cast<size_t>(change) % step; at < whole.size(); at += step) {
      std::string other = whole;
      other[at] = static_cast<char>(other[at] ^ change);
      write(other);
      num_accepted += refusal_of(GetParam(), model()) ? 0 : 1;
    }
  }
  EXPECT_GT(num_accepted, 0);  // every kind has bytes with any value
}

/// CPU seconds of reading, the best of three.
double seconds_of(const HostileSet& set, const fs::path& folder) {
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = thread_cpu_s();
    set.read(folder);
    best = std::min(best, thread_cpu_s() - start);
  }
  return best;
}

// Texts with the most work per byte: four times the bytes take four times as long.
TEST(HostileTexts, OfAnyForm_TakeTimeInProportionToTheirBytes) {
  struct Form {
    HostileSet set;
    std::string head, part, end;
  };
  const std::vector<Form> forms{
      {csv_set(), "x\n\"", "\"\"", "\"\n"},
      {csv_set(), "x\n", "1\n", ""},
      {csv_set(), "x\n", "\n", ""},
      {csv_set(), "x\n\"", "\n", "\"\n"},
      {csv_set(), "x\n", "\xF0\x9F\x98\x80", "\n"},
      {csv_set(), repeated("x,", 1023) + "x\n", repeated(",", 1023) + "\n", ""},
      {jsonl_set(), "", "0\n", ""},
      {jsonl_set(), "", "\n", ""},
      {jsonl_set(), "\"", "\\u0041", "\"\n"},
      {jsonl_set(), "[", "0,", "0]\n"},
      {jsonl_set(), "", repeated("[", 127) + repeated("]", 127) + "\n", ""},
      {jsonl_set(), "", "{\"a\":{\"b\":{\"c\":[]}}}\n", ""},
  };
  constexpr size_t kBytes = size_t{1} << (kIsInstrumented ? 14 : 18);
  const TempFolder folder;
  for (const Form& form : forms) {
    SCOPED_TRACE(form.set.kind + " " + form.part.substr(0, 20));
    double seconds[2] = {};
    for (const size_t times : {size_t{1}, size_t{4}}) {
      std::ofstream(folder / form.set.file_name, std::ios::binary)
          << form.head << repeated(form.part, times * kBytes / form.part.size()) << form.end;
      seconds[times / 4] = seconds_of(form.set, folder.path());
    }
    EXPECT_LT(seconds[1], 8 * seconds[0] + 0.05);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Hostile, testing::ValuesIn(hostile_sets()),
                         [](const auto& of) { return of.param.kind; });

}  // namespace
}  // namespace cleave::test
