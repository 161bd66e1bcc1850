#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/chat/pair_reader.h"
#include "cleave/data/batch.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/data/documents.h"
#include "cleave/file/atomic_write.h"
#include "tests/support/noting_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tests/support/thrown.h"

namespace cleave::pairs_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kEnd = 256;  // of the byte tokenizer

DatasetOptions options_for(const std::string& file, int64_t seq_len) {
  return {.files = {file},
          .tokenizer = byte_tokenizer(),
          .seq_len = seq_len,
          .cache_folder = "",
          .task = Task::kDpo};
}

class Pairs : public testing::Test {
 protected:
  std::string file(const std::string& text) {
    write_atomic(folder_ / "a.jsonl", text);
    return (folder_ / "a.jsonl").string();
  }
  std::shared_ptr<const Dataset> read(const std::string& text, int64_t seq_len = 400) {
    return pair_dataset(options_for(file(text), seq_len), chat_template_, &counts_);
  }
  Error refusal_of(const std::string& text, int64_t seq_len = 400) {
    return thrown_by([&] { (void)read(text, seq_len); });
  }

  TempFolder folder_;
  PairCounts counts_;
  std::shared_ptr<const ChatTemplate> chat_template_;
};

/// The labelled ids of a sequence as text; the end token is "$".
std::string answer(const std::vector<int64_t>& labels) {
  std::string text;
  for (const int64_t id : labels) {
    if (id >= 0) text += id == kEnd ? '$' : static_cast<char>(id);
  }
  return text;
}

TEST_F(Pairs, Texts_AreTwoSequencesWithLabelsOnTheAnswers) {
  const auto data = read(R"({"prompt": "ab", "chosen": "c", "rejected": "de"})");
  ASSERT_EQ(data->size(), 1);
  const Sample sample = data->sample(0);
  EXPECT_EQ(sample.ids, (std::vector<int64_t>{'a', 'b', 'c', kEnd}));
  EXPECT_EQ(sample.labels, (std::vector<int64_t>{-100, -100, 'c', kEnd}));
  EXPECT_EQ(sample.rejected_ids, (std::vector<int64_t>{'a', 'b', 'd', 'e', kEnd}));
  EXPECT_EQ(sample.rejected_labels, (std::vector<int64_t>{-100, -100, 'd', 'e', kEnd}));
  EXPECT_EQ(counts_.warning(400), "");
}

// Oracle: TRL's extract_prompt, which leaves a space before the difference to the answers.
TEST_F(Pairs, TextsWithoutAPrompt_HaveWhatBothBeginWithAsPrompt) {
  const auto data = read(
      "{\"chosen\": \"Hi. Yes\", \"rejected\": \"Hi. No\"}\n"
      "{\"chosen\": \"x\\u00e9\", \"rejected\": \"x\\u00e8\"}\n");  // equal first bytes
  EXPECT_EQ(answer(data->sample(0).labels), " Yes$");
  EXPECT_EQ(answer(data->sample(0).rejected_labels), " No$");
  EXPECT_EQ(answer(data->sample(1).labels), "\xc3\xa9$");
}

// Both answers begin with "The ", which would be the prompt.
TEST_F(Pairs, TextsWithThePromptUnderAnotherKey_AreRefused) {
  const std::string answers = R"("chosen": "The sky.", "rejected": "The sea."})";
  for (const char* key : {"question", "instruction", "input"}) {
    EXPECT_THAT(refusal_of(str("{\"", key, "\": \"Q\", ", answers)).what(),
                HasSubstr(str(key, "\" is \"Q\"; rename the key to \"prompt\"")));
  }
  EXPECT_THAT(refusal_of(R"({"system": "S", "prompt": "Q", )" + answers).what(),
              HasSubstr("only rows of messages may have it"));
  const auto data = read(R"({"system": "", "prompt": "Q", "question": "Q", )" + answers);
  EXPECT_EQ(answer(data->sample(0).labels), "The sky.$");
}

// Oracle: the text of ChatML, written out.
TEST_F(Pairs, Messages_HaveTheTextAfterThePromptAsAnswer) {
  chat_template_ = std::make_shared<ChatTemplate>(std::string(kChatMl), "chatml", *byte_tokenizer(),
                                                  kTrainingTime);
  const std::string question = R"({"role": "user", "content": "Q"})";
  const auto message = [](const std::string& text) {
    return R"({"role": "assistant", "content": ")" + text + "\"}";
  };
  const std::string common = "{\"chosen\": [" + question + ", " + message("A") +
                             "], \"rejected\": [" + question + ", " + message("B") + "]}";
  const std::string explicit_prompt = "{\"prompt\": [" + question + "], \"chosen\": [" +
                                      message("A") + "], \"rejected\": [" + message("B") + "]}";
  for (const std::string& row : {common, explicit_prompt}) {
    ASSERT_TRUE(holds_message_pairs({file(row)}));
    const Sample sample = read(row)->sample(0);
    const std::string text(sample.ids.begin(), sample.ids.end());
    EXPECT_THAT(text, StartsWith("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\nA"));
    EXPECT_EQ(answer(sample.labels), "A<|im_end|>\n");
    EXPECT_EQ(answer(sample.rejected_labels), "B<|im_end|>\n");
  }
  EXPECT_FALSE(holds_message_pairs({file(R"({"chosen": "a", "rejected": "b"})")}));
  chat_template_ = nullptr;
  EXPECT_EQ(refusal_of(common).code(), Code::kUsage);
}

// Oracle: the text of the template, written out. TRL gives it "tools" too.
TEST_F(Pairs, SystemAndToolsBesideMessages_AreShownByTheTemplate) {
  chat_template_ = std::make_shared<ChatTemplate>(
      "{{ tools[0].name if tools else '-' }}{% for m in messages %}[{{ m.content }}]{% endfor %}",
      "test", *byte_tokenizer(), kTrainingTime);
  const auto text = [&](const std::string& more, const std::string& first = "") {
    const Sample sample =
        read(str(R"({"prompt": [)", first, R"({"role": "user", "content": "Q"}],)",
                 R"("chosen": [{"role": "assistant", "content": "A"}],)",
                 R"("rejected": [{"role": "assistant", "content": "B"}])", more, "}"))
            ->sample(0);
    EXPECT_EQ(answer(sample.labels), "[A]");
    EXPECT_EQ(answer(sample.rejected_labels), "[B]");
    return std::string(sample.rejected_ids.begin(), sample.rejected_ids.end());
  };
  EXPECT_EQ(text(""), "-[Q][B]");
  EXPECT_EQ(text(R"(, "tools": [{"name": "add"}])"), "add[Q][B]");
  EXPECT_EQ(text(R"(, "system": "S")"), "-[S][Q][B]");
  EXPECT_EQ(text(R"(, "system": "S")", R"({"role": "system", "content": "T"},)"), "-[T][Q][B]");
}

// As DeepSeek R1's template. Oracle: its text, written out; TRL takes what the texts of the prompt
// and of both messages have in common as the prompt.
TEST_F(Pairs, AnswersThatATemplateBeginsOtherwiseWhenTheyAreFinished_AreWhole) {
  chat_template_ = std::make_shared<ChatTemplate>(
      "{% for m in messages %}{% if m.role == 'assistant' %}<a>"
      "{{ m.content.split('</think>')[-1] }}<e>{% else %}<u>{{ m.content }}{% endif %}{% endfor %}"
      "{% if add_generation_prompt %}<a><think>{% endif %}",
      "test", *byte_tokenizer(), kTrainingTime);
  const Sample sample =
      read(str(R"({"prompt": [{"role": "user", "content": "Q"},)",
               R"({"role": "assistant", "content": "P"}, {"role": "user", "content": "R"}],)",
               R"("chosen": [{"role": "assistant", "content": "<think>why</think>A"}],)",
               R"("rejected": [{"role": "assistant", "content": "B"}]})"))
          ->sample(0);
  EXPECT_EQ(std::string(sample.ids.begin(), sample.ids.end()), "<u>Q<a>P<e><u>R<a>A<e>");
  EXPECT_EQ(answer(sample.labels), "A<e>");
  EXPECT_EQ(answer(sample.rejected_labels), "B<e>");
}

// As rows whose prompt has another name: TRL trains on them without their prompt.
TEST_F(Pairs, TextsThatBeginDifferentlyWithoutAPrompt_AreRefused) {
  const std::string answers = R"("chosen": "Yes", "rejected": "No"})";
  for (const char* start : {"{", R"({"asked": "Is it?", )"}) {
    const Error error = refusal_of(start + answers);
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("a.jsonl:1: the row has no prompt: the texts of \"chosen\" "
                                        "and \"rejected\" begin differently"));
  }
  EXPECT_EQ(answer(read(R"({"prompt": "", )" + answers)->sample(0).rejected_labels), "No$");
}

TEST_F(Pairs, InvalidRows_AreRefusedWithFileAndLine) {
  const std::string good = "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"prompt": "a", "chosen": "b"})", "the row has no \"rejected\""},
      {R"({"prompt": "a", "rejected": "b"})", "the row has no \"chosen\""},
      {R"({"prompt": "a", "chosen": "b", "rejected": "b"})", "identical"},
      {R"({"prompt": "a", "chosen": "", "rejected": "b"})", "the chosen answer is empty"},
      {R"({"prompt": "a", "chosen": "b", "rejected": ""})", "the rejected answer is empty"},
      {R"({"prompt": "a", "chosen": [], "rejected": "b"})", "\"chosen\" is a list"},
      {R"({"chosen": "b", "rejected": "c"})", "all rows must be of one form"},
      {R"({"prompt": "a", "chosen": [{"role": "user", "content": "x"}], "rejected": []})",
       "all rows must be of one form"},
      {R"({"prompt": "a", "chosen": 1, "rejected": "b"})", "chosen"},
      {"3", "expected \"chosen\" and \"rejected\""}};
  for (const auto& [row, part] : cases) {
    const Error error = refusal_of(good + row);
    EXPECT_EQ(error.code(), Code::kFormat) << row;
    EXPECT_THAT(error.what(), HasSubstr(part)) << row;
    EXPECT_THAT(error.what(), HasSubstr("a.jsonl:2")) << row;
  }
}

TEST_F(Pairs, FileForAnotherTask_IsRefusedWithTheTaskThatReadsIt) {
  const std::string path = file(R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  const Error error = thrown_by([&] { (void)file_kind(path); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("only --task dpo reads"));
}

TEST_F(Pairs, LongPairs_AreTruncatedAndCounted) {
  const auto data = read(
      "{\"prompt\": \"ab\", \"chosen\": \"cdef\", \"rejected\": \"g\"}\n"
      "{\"prompt\": \"abcdef\", \"chosen\": \"g\", \"rejected\": \"h\"}\n"
      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n",
      4);
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(answer(data->sample(0).labels), "cd");
  // 7 - 4 tokens of the first pair; 8 - 4 of both sequences of the second.
  EXPECT_THAT(counts_.warning(4),
              StartsWith("2 of 3 pairs have a sequence longer than --seq-len 4 and are truncated: "
                         "11 of 33 tokens are not used (the first: "));
  EXPECT_THAT(counts_.warning(4), HasSubstr("1 of them is left out"));
  const Error error = refusal_of(R"({"prompt": "abc", "chosen": "d", "rejected": "e"})", 3);
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("raise --seq-len"));
}

TEST_F(Pairs, OneLongPair_IsCountedInTheSingular) {
  counts_ = {.pairs = 1,
             .tokens = 9,
             .truncated = 1,
             .truncated_tokens = 1,
             .left_out = 1,
             .first = "a.jsonl:1"};
  EXPECT_EQ(counts_.warning(4),
            "1 of 1 pair has a sequence longer than --seq-len 4 and is truncated: 1 of 9 tokens is "
            "not used (the first: a.jsonl:1); 1 of them is left out, because the truncated "
            "sequences are identical");
}

TEST_F(Pairs, Batch_HasChosenAndRejectedSequencesAsNeighbours) {
  const auto data = read(
      "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cd\"}\n"
      "{\"prompt\": \"e\", \"chosen\": \"f\", \"rejected\": \"g\"}\n");
  const SampleOrder order{.num_samples = 2, .batch_size = 2, .shuffle = false};
  const Batch batch = make_batch(*data, order, 0, 1, 2, 7);
  EXPECT_EQ(batch.rows_per_sample, 2);
  EXPECT_EQ(batch.first_row, 2);
  // Padded to the longest sequence of the whole batch, "acd$".
  EXPECT_TRUE(at::equal(batch.ids, at::tensor({int64_t{'e'}, int64_t{'f'}, kEnd, int64_t{7},
                                               int64_t{'e'}, int64_t{'g'}, kEnd, int64_t{7}},
                                              at::kLong)
                                       .view({2, 4})));
  EXPECT_TRUE(batch.attention_mask.defined());
}

// Oracle: the bytes of the rows, in order.
TEST_F(Pairs, Rows_AreTokenizedOnAllThreadsInOrder) {
  const test::Threads three(3);
  std::string rows;
  constexpr int kRows = 10'000;  // more than a batch
  for (int i = 0; i < kRows; ++i) {
    rows += str(R"({"prompt": "number )", i, R"(", "chosen": "c", "rejected": "d"})", '\n');
  }
  const auto tokenizer = std::make_shared<test::NotingTokenizer>();
  DatasetOptions options = options_for(file(rows), 32);
  options.tokenizer = tokenizer;
  const auto data = pair_dataset(options, nullptr, &counts_);
  ASSERT_EQ(data->size(), kRows);
  for (int i = 0; i < kRows; ++i) {
    const std::string text = str("number ", i, "c");
    std::vector<int64_t> ids(text.begin(), text.end());
    ids.push_back(kEnd);
    ASSERT_EQ(data->sample(i).ids, ids);
    ids[ids.size() - 2] = 'd';
    ASSERT_EQ(data->sample(i).rejected_ids, ids);
  }
  EXPECT_EQ(tokenizer->num_threads(), 3);
}

TEST_F(Pairs, OfSeveralWrongRows_TheFirstIsNamed) {
  const std::string good = R"({"prompt": "a", "chosen": "b", "rejected": "c"})"
                           "\n";
  const std::string same = R"({"prompt": "a", "chosen": "b", "rejected": "b"})"
                           "\n";
  const std::string empty = R"({"prompt": "a", "chosen": "", "rejected": "b"})"
                            "\n";
  EXPECT_THAT(refusal_of(good + good + same + empty + "{").what(), HasSubstr("a.jsonl:3: "));
  EXPECT_THAT(refusal_of(good + empty + same + "{").what(), HasSubstr("a.jsonl:2: "));
  EXPECT_THAT(refusal_of(good + good + "{\n" + same).what(), HasSubstr("a.jsonl:3"));
}

}  // namespace
}  // namespace cleave::pairs_test
