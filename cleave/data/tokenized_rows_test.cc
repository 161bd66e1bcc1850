#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/chat/chat_template.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/file/atomic_write.h"
#include "tests/support/noting_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::tokenized_rows_test {
namespace {

namespace fs = std::filesystem;
using test::NotingTokenizer;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

constexpr int64_t kEnd = 256;  // of the byte tokenizer

/// The labels of a sample as text; "$" is the end token, "." a token that is not trained.
std::string text_of(const std::vector<int64_t>& labels) {
  std::string text;
  for (const int64_t id : labels) {
    text += id < 0 ? '.' : id == kEnd ? '$' : static_cast<char>(id);
  }
  return text;
}

/// Files of conversations or pairs, and a cache folder that does not exist yet.
class TokenizedRows : public testing::Test {
 protected:
  std::string written(const std::string& name, const std::string& text) {
    write_atomic(folder_ / name, text);
    return (folder_ / name).string();
  }
  /// The labels of all conversations of a file. `counts_` and `calls_` are those of this opening.
  std::vector<std::string> chats(const std::vector<std::string>& files,
                                 const ChatOptions& chat = {}) {
    const auto tokenizer = std::make_shared<NotingTokenizer>(tokenizer_fingerprint_);
    counts_ = {};
    const auto data = chat_dataset(
        {.files = files, .tokenizer = tokenizer, .seq_len = seq_len_, .cache_folder = cache_}, chat,
        &counts_);
    calls_ = tokenizer->num_calls();
    fingerprint_ = data->fingerprint();
    std::vector<std::string> labels;
    for (int64_t i = 0; i < data->size(); ++i) labels.push_back(text_of(data->sample(i).labels));
    return labels;
  }
  std::shared_ptr<const ChatTemplate> template_of(const std::string& text) const {
    return std::make_shared<const ChatTemplate>(text, "test", *byte_tokenizer(), kTrainingTime);
  }

  TempFolder folder_;
  std::string cache_ = (folder_ / "run" / "tokens").string();
  int64_t seq_len_ = 64;
  uint64_t tokenizer_fingerprint_ = 1;
  ChatCounts counts_;
  int64_t calls_ = 0;
  uint64_t fingerprint_ = 0;
};

TEST_F(TokenizedRows, SecondOpening_ReadsTheCache) {
  std::string rows;
  std::vector<std::string> wanted;
  for (int i = 0; i < 600; ++i) {  // more than are read from the cache at a time
    const std::string answer(1 + static_cast<size_t>(i % 7), static_cast<char>('a' + i % 26));
    rows += str(R"({"prompt": "ab", "completion": ")", answer, "\"}\n");
    wanted.push_back(".." + answer + "$");
  }
  const std::string file = written("a.jsonl", rows);
  EXPECT_EQ(chats({file}), wanted);
  EXPECT_GE(calls_, 600);
  const uint64_t first = fingerprint_;
  EXPECT_EQ(chats({file}), wanted);
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(fingerprint_, first);
  EXPECT_EQ(counts_.conversations, 600);
  cache_ = "";
  EXPECT_EQ(chats({file}), wanted);
  EXPECT_EQ(fingerprint_, first);
}

// The cache holds whole conversations, so that a warning counts the same tokens.
TEST_F(TokenizedRows, AnotherLength_TruncatesTheCachedConversations) {
  const std::string file = written("a.jsonl",
                                   "\n"
                                   R"({"prompt": "ab", "completion": "cdef"})"
                                   "\n"
                                   R"({"prompt": "abcdef", "completion": "g"})"
                                   "\n");
  EXPECT_EQ(chats({file}), (std::vector<std::string>{"..cdef$", "......g$"}));
  seq_len_ = 4;
  EXPECT_EQ(chats({file}), (std::vector<std::string>{"..cd"}));
  EXPECT_EQ(calls_, 0);
  EXPECT_EQ(counts_.warning(4),
            "2 of 2 conversations are longer than --seq-len 4 and are truncated: 7 of 15 tokens "
            "are not used (the first: " +
                file +
                ":2); 1 of them is left out, because the truncation removed all of its trained "
                "tokens");
}

TEST_F(TokenizedRows, ChangedDataOrSettings_AreTokenizedAgain) {
  const std::string row = R"({"prompt": "ab", "completion": "c"})"
                          "\n";
  const std::string file = written("a.jsonl", row);
  const auto plain = template_of(
      "{% for m in messages %}{{ m['content'] }}{% endfor %}"
      "{% if add_generation_prompt %}{% endif %}");
  const auto other = template_of(
      "{% for m in messages %}{{ m['content'] }}!{% endfor %}"
      "{% if add_generation_prompt %}{% endif %}");
  using Labels = std::vector<std::string>;
  EXPECT_EQ(chats({file}), Labels{"..c$"});
  EXPECT_EQ(chats({file}, {.chat_template = plain}), Labels{"..c"});
  EXPECT_EQ(chats({file}, {.chat_template = other}), Labels{"...c!"});
  EXPECT_EQ(chats({file}, {.chat_template = plain, .train_on_all = true}), Labels{"abc"});
  EXPECT_GT(calls_, 0);
  EXPECT_EQ(chats({file}, {.chat_template = plain}), Labels{"..c"});
  EXPECT_EQ(calls_, 0);
  tokenizer_fingerprint_ = 2;
  EXPECT_EQ(chats({file}), Labels{"..c$"});
  EXPECT_GT(calls_, 0);
  (void)written("a.jsonl", R"({"prompt": "ab", "completion": "d"})"
                           "\n");  // as long as before
  EXPECT_EQ(chats({file}), Labels{"..d$"});
}

// Rows of different kinds are refused, also if each file alone is in the cache.
TEST_F(TokenizedRows, SeveralFiles_AreOneList) {
  const std::string a = written("a.jsonl", R"({"prompt": "a", "completion": "b"})"
                                           "\n");
  const std::string b = written("b.jsonl", R"({"instruction": "a", "output": "b"})"
                                           "\n");
  const std::string c = written("c.jsonl", R"({"prompt": "a", "completion": "longer"})"
                                           "\n");
  (void)chats({a});
  (void)chats({b});
  EXPECT_THAT(thrown_by([&] {
                (void)chats({a, b});
              }).what(),
              HasSubstr(b + ":1: the row has \"instruction\""));
  seq_len_ = 4;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(chats({a, c}), (std::vector<std::string>{".b$", ".lon"}));
    EXPECT_EQ(counts_.first, c + ":1");
  }
  EXPECT_EQ(calls_, 0);
}

// A row with an error stores nothing, so that it is named again.
TEST_F(TokenizedRows, WrongRow_IsNamedAtEachOpening) {
  const std::string file = written("a.jsonl", R"({"prompt": "a", "completion": "b"})"
                                              "\n"
                                              R"({"prompt": "a", "completion": ""})"
                                              "\n");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(thrown_by([&] { (void)chats({file}); }).what(), HasSubstr(file + ":2: "));
  }
  EXPECT_TRUE(fs::exists(cache_));
  for (const auto& entry : fs::directory_iterator(cache_)) {
    EXPECT_EQ(entry.path().filename(), ".tokens.lock");
  }
}

TEST_F(TokenizedRows, SecondOpeningOfPairs_ReadsTheCache) {
  const std::string file = written("a.jsonl", R"({"prompt": "ab", "chosen": "cd", "rejected": "e"})"
                                              "\n"
                                              R"({"prompt": "f", "chosen": "g", "rejected": "hij"})"
                                              "\n");
  for (const bool is_first : {true, false}) {
    const auto tokenizer = std::make_shared<NotingTokenizer>();
    PairCounts counts;
    const auto data = pair_dataset({.files = {file},
                                    .tokenizer = tokenizer,
                                    .seq_len = 4,
                                    .cache_folder = cache_,
                                    .task = Task::kDpo},
                                   nullptr, &counts);
    EXPECT_EQ(tokenizer->num_calls() > 0, is_first);
    ASSERT_EQ(data->size(), 2);
    EXPECT_EQ(data->sample(0).ids, (std::vector<int64_t>{'a', 'b', 'c', 'd'}));
    EXPECT_EQ(text_of(data->sample(0).labels), "..cd");
    EXPECT_EQ(text_of(data->sample(0).rejected_labels), "..e$");
    EXPECT_EQ(text_of(data->sample(1).labels), ".g$");
    EXPECT_EQ(text_of(data->sample(1).rejected_labels), ".hij");
    EXPECT_EQ(counts.truncated, 2);
    EXPECT_EQ(counts.first, file + ":1");
  }
}

}  // namespace
}  // namespace cleave::tokenized_rows_test
