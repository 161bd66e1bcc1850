#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/report/lesson_run.h"

namespace cleave::inline report {

/// The sizes of a lesson's run: a Llama in fp32 whose embedding and head are two matrices.
struct LessonSizes {
  int64_t layers = 8, hidden = 128, ffn = 384, vocab = 320;
  int64_t batch = 8, seq_len = 128;  ///< sequences; tokens of each
  int64_t ranks = 2;                 ///< n
  int64_t micro_batches = 1;         ///< of a pipeline
};

/// Bytes of an fp32 number.
inline constexpr int64_t kLessonNumberBytes = 4;

/// How many numbers the weights have: those of a block, those of all norms, and all.
int64_t block_weights(const LessonSizes& sizes);
int64_t norm_weights(const LessonSizes& sizes);
int64_t all_weights(const LessonSizes& sizes);

/// A recorded step of the lesson and one without what it teaches.
struct LessonRuns {
  LessonSizes sizes{};
  LessonRun before{}, run{};
};

/// What the numbers of an answer count.
enum class LessonUnit : uint8_t { kBytes, kShare, kCount };

/// A question about a recorded step, and its answer.
struct LessonAnswer {
  std::string question{};
  std::string formula{};
  LessonUnit unit = LessonUnit::kBytes;
  double expected = 0;   ///< by the formula
  double measured = 0;   ///< in the recorded step
  std::string remark{};  ///< why, and the numbers of the run before
};

/// "16 MiB", "37.5 %", "4".
std::string number_text(double number, LessonUnit unit);

/// The three questions of the lesson "tp", "sp", "pp", "zero" or "fsdp". Throws Error(kBug) for
/// another name.
std::vector<LessonAnswer> lesson_answers(std::string_view name, const LessonRuns& runs);

/// A page of replay_page() with a section of these questions.
std::string with_lesson(const std::string& page, const std::string& title,
                        const std::vector<LessonAnswer>& answers);

}  // namespace cleave::inline report
