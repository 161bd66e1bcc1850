#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/chat/chat_template.h"
#include "cleave/data/dataset_kinds.h"
#include "cleave/file/atomic_write.h"
#include "tests/support/golden.h"
#include "tests/support/noting_tokenizer.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tests/support/thrown.h"

namespace cleave::chats_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

constexpr int64_t kEnd = 256;  // of the byte tokenizer

DatasetOptions options_for(const std::string& file, int64_t seq_len) {
  return {.files = {file}, .tokenizer = byte_tokenizer(), .seq_len = seq_len, .cache_folder = ""};
}

std::string written(const TempFolder& folder, const std::string& text) {
  write_atomic(folder / "a.jsonl", text);
  return (folder / "a.jsonl").string();
}

TEST(Chats, Completions_AreOneSampleEachWithLabelsOnTheAnswer) {
  const TempFolder folder;
  const std::string file = written(folder, R"({"prompt": "ab", "completion": "c"})"
                                           "\n"
                                           R"({"prompt": "d", "completion": "ef"})"
                                           "\n");
  ASSERT_TRUE(holds_chats({file}));
  ChatCounts counts;
  const auto data = chat_dataset(options_for(file, 8), {}, &counts);
  ASSERT_EQ(data->size(), 2);
  EXPECT_TRUE(data->is_text());
  EXPECT_EQ(data->sample(0).ids, (std::vector<int64_t>{'a', 'b', 'c', kEnd}));
  EXPECT_EQ(data->sample(0).labels, (std::vector<int64_t>{-100, -100, 'c', kEnd}));
  EXPECT_EQ(data->sample(1).ids, (std::vector<int64_t>{'d', 'e', 'f', kEnd}));
  EXPECT_EQ(data->sample(1).labels, (std::vector<int64_t>{-100, 'e', 'f', kEnd}));
  EXPECT_EQ(counts.warning(8), "");
}

TEST(Chats, LongConversations_AreTruncatedAndCounted) {
  const TempFolder folder;
  const std::string file = written(folder, R"({"prompt": "ab", "completion": "cdef"})"
                                           "\n"
                                           R"({"prompt": "abcdef", "completion": "g"})"
                                           "\n"
                                           R"({"prompt": "a", "completion": "b"})"
                                           "\n");
  ChatCounts counts;
  const auto data = chat_dataset(options_for(file, 4), {}, &counts);
  ASSERT_EQ(data->size(), 2);
  EXPECT_EQ(data->sample(0).labels, (std::vector<int64_t>{-100, -100, 'c', 'd'}));
  EXPECT_EQ(
      counts.warning(4),
      "2 of 3 conversations are longer than --seq-len 4 and are truncated: 7 of 18 tokens "
      "are not used (the first: " +
          file +
          ":1); 1 of them is left out, because the truncation removed all of its trained tokens");
  ChatCounts none;
  const Error error = thrown_by([&] { (void)chat_dataset(options_for(file, 1), {}, &none); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("raise --seq-len"));
}

TEST(Chats, WithoutATokenizer_AreRefusedWithTheFlag) {
  const TempFolder folder;
  const std::string file = written(folder, R"({"prompt": "a", "completion": "b"})");
  DatasetOptions options = options_for(file, 8);
  options.tokenizer = nullptr;
  ChatCounts counts;
  const Error error = thrown_by([&] { (void)chat_dataset(options, {}, &counts); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr(file + " holds conversations, which need a tokenizer; the "
                                             "model has none, so give one with --tokenizer DIR"));
}

TEST(Chats, BadRows_NameFileAndLine) {
  const TempFolder folder;
  const std::string file = written(folder, R"({"prompt": "a", "completion": "b"})"
                                           "\n\n"
                                           R"({"instruction": "a", "output": "b"})"
                                           "\n");
  ChatCounts counts;
  const Error error = thrown_by([&] { (void)chat_dataset(options_for(file, 8), {}, &counts); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr(file + ":3: the row has \"instruction\""));
}

TEST(Chats, RowOfText_NamesTheRowThatItDiffersFrom) {
  const TempFolder folder;
  const std::string file = written(folder, R"({"prompt": "a", "completion": "b"})"
                                           "\n"
                                           R"({"text": "a"})"
                                           "\n");
  ChatCounts counts;
  EXPECT_THAT(
      thrown_by([&] { (void)chat_dataset(options_for(file, 8), {}, &counts); }).what(),
      HasSubstr(file + ":2: the row is not a conversation, unlike " + file + ":1; expected"));
}

// As rows of Alpaca, and those that hold a conversation and its text in some template.
TEST(Chats, ConversationsThatAlsoHaveAText_AreRefused) {
  const TempFolder folder;
  for (const auto& [row, key] : std::vector<std::pair<std::string, std::string>>{
           {R"({"messages": [], "text": "a"})", "messages"},
           {R"({"instruction": "a", "output": "b", "text": "c"})", "instruction"}}) {
    const std::string file = written(folder, row);
    const Error error = thrown_by([&] { (void)holds_chats({file}); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_EQ(std::string(error.what()), file + ": the first row has \"" + key +
                                             "\" and \"text\"; remove one, as with: jq -c "
                                             "'del(.text)' " +
                                             file);
  }
}

TEST(Chats, RowsWithTwoConversations_AreRefused) {
  const TempFolder folder;
  const std::string one = R"({"messages": [{"role": "user", "content": "a"}], "prompt": "b"})";
  const std::string both = R"({"messages": [], "prompt": "a", "completion": "b"})";
  const std::string file = written(folder, both);
  EXPECT_EQ(std::string(thrown_by([&] { (void)holds_chats({file}); }).what()),
            file +
                ": the first row has \"messages\" and \"prompt\"; remove one, as with: jq -c "
                "'del(.prompt)' " +
                file);
  EXPECT_TRUE(holds_chats({written(folder, one)}));  // the prompt has no completion
  (void)written(folder, R"({"instruction": "a", "output": "b"})"
                        "\n"
                        R"({"instruction": "a", "output": "b", "prompt": "c", "completion": "d"})"
                        "\n");
  ChatCounts counts;
  EXPECT_THAT(thrown_by([&] { (void)chat_dataset(options_for(file, 64), {}, &counts); }).what(),
              HasSubstr(file + ":2: the row has \"prompt\" and \"instruction\"; remove one"));
}

TEST(Chats, OtherFiles_AreNoChats) {
  const TempFolder folder;
  EXPECT_FALSE(holds_chats({written(folder, R"({"text": "a", "prompt": "b"})")}));
  EXPECT_FALSE(holds_chats({written(folder, R"({"input_ids": [1], "prompt": "a"})")}));
  EXPECT_FALSE(holds_chats({written(folder, "")}));
  EXPECT_TRUE(holds_chats({written(folder, R"({"messages": []})")}));
  EXPECT_TRUE(holds_chats({written(folder, R"({"conversations": []})")}));
  write_atomic(folder / "a.txt", std::string_view(R"({"messages": []})"));
  EXPECT_TRUE(holds_chats({(folder / "a.txt").string()}));
  write_atomic(folder / "a.txt", std::string_view("{ a text"));
  EXPECT_FALSE(holds_chats({(folder / "a.txt").string()}));
  // Whatever the name: otherwise the model would learn the braces.
  for (const char* start : {"\xEF\xBB\xBF", "\n", " \r\n"}) {
    write_atomic(folder / "a.txt", str(start, R"({"messages": []})"));
    EXPECT_TRUE(holds_chats({(folder / "a.txt").string()})) << start;
  }
}

// This tokenizer drops spaces at the end of a text. Oracle: char_to_token() of transformers.
TEST(RealChatTokens, SpaceBeforeAnAnswer_BelongsToThePrompt) {
  CLEAVE_NEEDS_DATA();
  const auto tokenizer = load_tokenizer(test::data_folder() + "/tokenizers/stories260K-tok512");
  const std::string prompt = "A: ";
  const TokenizedChat chat = tokenize_chat(*tokenizer, {prompt + "6.", {{3, 5}}});
  // A mark of the beginning, "A", ":", the space, "6", "."
  EXPECT_EQ(chat.ids, (std::vector<int64_t>{410, 447, 467, 410, 490, 426}));
  EXPECT_EQ(chat.is_trained, (std::vector<bool>{false, false, false, false, true, true}));
}

// It drops a space before a special token too; the answer ends there.
TEST(RealChatTokens, SpaceAtTheEndOfAnAnswer_TrainsNoTokenAfterIt) {
  CLEAVE_NEEDS_DATA();
  const auto tokenizer = load_tokenizer(test::data_folder() + "/tokenizers/stories260K-tok512");
  const TokenizedChat chat = tokenize_chat(*tokenizer, {"Hi </s>Q", {{0, 3}}});
  // A space and "H", "i", the end, the space of a beginning, "Q"
  EXPECT_EQ(chat.ids, (std::vector<int64_t>{320, 417, 2, 410, 473}));
  EXPECT_EQ(chat.is_trained, (std::vector<bool>{true, true, false, false, false}));
}

// Oracle: the bytes of the rows, in order.
TEST(Chats, Rows_AreTokenizedOnAllThreadsInOrder) {
  const test::Threads three(3);
  const TempFolder folder;
  std::string rows;
  constexpr int kRows = 10'000;  // more than a batch
  for (int i = 0; i < kRows; ++i) {
    rows += str(R"({"prompt": "number )", i, R"(", "completion": "c"})", '\n');
  }
  const auto tokenizer = std::make_shared<test::NotingTokenizer>();
  DatasetOptions options = options_for(written(folder, rows), 32);
  options.tokenizer = tokenizer;
  ChatCounts counts;
  const auto data = chat_dataset(options, {}, &counts);
  ASSERT_EQ(data->size(), kRows);
  for (int i = 0; i < kRows; ++i) {
    const std::string text = str("number ", i, "c");
    std::vector<int64_t> ids(text.begin(), text.end());
    ids.push_back(kEnd);
    ASSERT_EQ(data->sample(i).ids, ids);
  }
  EXPECT_EQ(tokenizer->num_threads(), 3);
}

// A row of another kind, one without an answer, and one that is not JSON.
TEST(Chats, OfSeveralWrongRows_TheFirstIsNamed) {
  const TempFolder folder;
  const std::string good = R"({"prompt": "a", "completion": "b"})", other = R"({"text": "a"})";
  const std::string empty = R"({"prompt": "a", "completion": ""})", broken = "{";
  const auto message_of = [&](const std::vector<std::string>& rows) {
    std::string text;
    for (const std::string& row : rows) text += row + '\n';
    const std::string file = written(folder, text);
    ChatCounts counts;
    return std::string(
        thrown_by([&] { (void)chat_dataset(options_for(file, 8), {}, &counts); }).what());
  };
  EXPECT_THAT(message_of({good, good, other, empty, broken}), HasSubstr("a.jsonl:3: the row is"));
  EXPECT_THAT(message_of({good, empty, other, broken}), HasSubstr("a.jsonl:2: "));
  EXPECT_THAT(message_of({good, good, good, broken, empty}), HasSubstr("a.jsonl:4"));
}

}  // namespace
}  // namespace cleave::chats_test
