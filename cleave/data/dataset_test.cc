#include "cleave/data/dataset.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/file/atomic_write.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::dataset_test {
namespace {

using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Ids = std::vector<int64_t>;

constexpr int64_t kEnd = 256;  // of the byte tokenizer

/// Data files of a test and options that open them.
class Data {
 public:
  std::string file(const std::string& name, std::string_view text) {
    write_atomic(folder_ / name, text);
    return (folder_ / name).string();
  }
  [[nodiscard]] std::string folder(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] DatasetOptions options(std::vector<std::string> files, int64_t seq_len = 4) const {
    DatasetOptions options;
    options.files = std::move(files);
    options.tokenizer = byte_tokenizer();
    options.seq_len = seq_len;
    return options;
  }

 private:
  TempFolder folder_;
};

Ids all_ids(const Dataset& data) {
  Ids ids;
  for (int64_t i = 0; i < data.size(); ++i) {
    const Sample sample = data.sample(i);
    ids.insert(ids.end(), sample.ids.begin(), sample.ids.end());
  }
  return ids;
}

/// The bytes of each document, each ended by the end id.
Ids stream_of(const std::vector<std::string>& documents) {
  Ids ids;
  for (const std::string& document : documents) {
    for (const char c : document) ids.push_back(static_cast<uint8_t>(c));
    ids.push_back(kEnd);
  }
  return ids;
}

TEST(OpenDataset, TextFiles_AreOneStreamOfBytesAndEndIdsInSequences) {
  Data data;
  const auto opened =
      open_dataset(data.options({data.file("a", "abcdefg"), data.file("b", "\xC3\xA9\r\nz")}));
  EXPECT_TRUE(opened->is_text());
  ASSERT_EQ(opened->size(), 3);  // 8 + 6 ids, the last two are dropped
  EXPECT_THAT(opened->sample(0).ids, ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(opened->sample(1).ids, ElementsAre('e', 'f', 'g', kEnd));
  EXPECT_THAT(opened->sample(2).ids, ElementsAre(0xC3, 0xA9, '\r', '\n'));
  EXPECT_THAT(opened->sample(2).labels, IsEmpty());
  EXPECT_THAT(opened->sample(2).attention_mask, IsEmpty());
  EXPECT_EQ(thrown_by([&] { (void)opened->sample(3); }).code(), Code::kUsage);
}

TEST(OpenDataset, SequencesThatSpanFiles_TakeFromEach) {
  Data data;
  std::vector<std::string> files;
  std::vector<std::string> documents;
  for (int i = 0; i < 20; ++i) {
    documents.emplace_back(static_cast<size_t>(i % 4), static_cast<char>('a' + i));
    files.push_back(data.file(std::to_string(i), documents.back()));
  }
  std::erase(documents, "");  // an empty file is no document
  const Ids want = stream_of(documents);
  for (const int64_t seq_len : {1, 5, 9}) {
    const auto opened = open_dataset(data.options(files, seq_len));
    const size_t whole_rows = want.size() / static_cast<size_t>(seq_len);
    const Ids packed(want.begin(), want.begin() + static_cast<int64_t>(whole_rows) * seq_len);
    EXPECT_EQ(all_ids(*opened), packed) << seq_len;
  }
}

/// Restores the soft limit of open files.
class DescriptorLimit {
 public:
  DescriptorLimit() { getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

  /// Leaves about `count` more files to open, until the program raises the limit.
  void set(rlim_t count) const {
    const int next = dup(STDIN_FILENO);
    close(next);
    const rlimit limit{.rlim_cur = static_cast<rlim_t>(next) + count, .rlim_max = before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

 private:
  rlimit before_{};
};

// The files of tokens stay open: more of them than the usual soft limit allows.
TEST(OpenDataset, MoreFilesThanTheSoftLimit_AreRead) {
  constexpr size_t kCount = 200;
  const DescriptorLimit limit;
  Data data;
  std::vector<std::string> files, documents;
  for (size_t i = 0; i < kCount; ++i) {
    documents.push_back(str("text ", i));
    files.push_back(data.file(str(i, ".jsonl"), str("{\"text\": \"", documents.back(), "\"}\n")));
  }
  DatasetOptions options = data.options(files, 1);
  options.cache_folder = data.folder("tokens");
  limit.set(100);
  EXPECT_EQ(all_ids(*open_dataset(options)), stream_of(documents));
}

TEST(OpenDataset, JsonLines_AreOneDocumentEach) {
  Data data;
  const Ids want = stream_of({"one", "tw\no", "three"});
  for (const std::string_view text :
       {"{\"text\": \"one\"}\n{\"text\": \"tw\\no\"}\n{\"text\": \"three\"}\n",
        "\n  \r\n{\"text\": \"one\", \"id\": 7}\r\n\r\n{\"text\": \"tw\\no\"}\r\n{\"text\": "
        "\"three\"}",
        "\xEF\xBB\xBF{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"tw\\u000ao\"}\n"
        "{\"text\": \"thr\\u0065e\"}\n"}) {
    const auto opened = open_dataset(data.options({data.file("any name", text)}, 1));
    EXPECT_EQ(all_ids(*opened), want) << text;
  }
}

TEST(OpenDataset, TextThatBeginsLikeJson_IsText) {
  Data data;
  for (const std::string text :
       {"{ not JSON", "{\"a\": 1}\n", "{\"text\": 5}\n", "{\"text\": [\n1]}", "[1, 2]\n"}) {
    const auto opened = open_dataset(data.options({data.file("f", text)}, 1));
    EXPECT_EQ(all_ids(*opened), stream_of({text}));
  }
}

// A text is encoded in blocks of lines. The ids must equal those of the whole text, and no block
// may end inside a special token: the text has one at every possible end of a block.
TEST(OpenDataset, LongTexts_GiveTheIdsOfTheWholeText) {
  Data data;
  std::string text;
  while (text.size() < (size_t{3} << 20)) text += "<|endoftext|>\n";
  text.append(size_t{2} << 20, 'x');  // a line longer than a block
  for (int i = 0; i < 1000; ++i) text += "<|endoftext|>\n";
  Ids want = byte_tokenizer()->encode(text);
  want.push_back(kEnd);
  constexpr int64_t kRow = 1000;
  want.resize(want.size() / kRow * kRow);
  EXPECT_EQ(all_ids(*open_dataset(data.options({data.file("f", text)}, kRow))), want);
}

TEST(OpenDataset, TextThatEndsWithTheEndToken_HasItOnce) {
  Data data;
  const auto opened = open_dataset(data.options({data.file("f", "ab<|endoftext|>")}, 1));
  EXPECT_THAT(all_ids(*opened), ElementsAre('a', 'b', kEnd));
}

TEST(OpenDataset, RowsOfIds_AreSamplesUnchanged) {
  Data data;
  const std::string first = data.file("a.jsonl",
                                      "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 0]}\r\n\n"
                                      "{\"input_ids\": [9], \"text\": \"not used\"}");
  const std::string second =
      data.file("b",
                "{\"input_ids\": [1, 2], \"attention_mask\": [1, 0], \"token_type_ids\": "
                "[0, 1], \"labels\": null}\n");
  DatasetOptions options = data.options({first, second}, 2);
  options.tokenizer = nullptr;
  options.vocab_size = 10;
  const auto opened = open_dataset(options);
  EXPECT_FALSE(opened->is_text());
  ASSERT_EQ(opened->size(), 3);
  EXPECT_THAT(opened->sample(0).ids, ElementsAre(5, 6, 7));
  EXPECT_THAT(opened->sample(0).labels, ElementsAre(-100, 6, 0));
  EXPECT_THAT(opened->sample(0).attention_mask, IsEmpty());
  EXPECT_THAT(opened->sample(1).ids, ElementsAre(9));
  EXPECT_THAT(opened->sample(1).labels, IsEmpty());
  EXPECT_THAT(opened->sample(2).ids, ElementsAre(1, 2));
  EXPECT_THAT(opened->sample(2).labels, IsEmpty());
  EXPECT_THAT(opened->sample(2).attention_mask, ElementsAre(1, 0));
  EXPECT_THAT(opened->sample(2).token_types, ElementsAre(0, 1));
  EXPECT_EQ(thrown_by([&] { (void)opened->sample(-1); }).code(), Code::kUsage);
}

// The model counts positions itself: others, as those of rows with several texts, would be ignored.
TEST(OpenDataset, RowsWithOtherPositions_AreRefused) {
  const auto rows_at = [](const std::string& positions) {
    Data data;
    return open_dataset(data.options({data.file(
        "rows.jsonl", R"({"input_ids": [3, 4, 5], "position_ids": )" + positions + "}")}));
  };
  EXPECT_EQ(rows_at("[0, 1, 2]")->size(), 1);
  EXPECT_EQ(rows_at("null")->size(), 1);
  for (const char* positions : {"[0, 1, 0]", "[1, 2, 3]", "[0, 0, 1]", "[0, -1, 2]", "3"}) {
    const Error error = thrown_by([&] { (void)rows_at(positions); });
    EXPECT_EQ(error.code(), Code::kFormat) << positions;
    EXPECT_THAT(error.what(), HasSubstr("rows.jsonl:1: \"position_ids")) << positions;
  }
}

TEST(OpenDataset, InvalidRows_AreRefusedWithFileLineAndKey) {
  struct Case {
    std::string line, says;
  };
  const std::vector<Case> cases{
      {"{\"input_ids\": [1, 10]}", "\"input_ids[1]\" is 10"},
      {"{\"input_ids\": [-1]}", "\"input_ids[0]\" is -1"},
      {"{\"input_ids\": [-100]}", "\"input_ids[0]\" is -100"},
      {"{\"input_ids\": [1.5]}", "\"input_ids[0]\" is 1.5"},
      {"{\"input_ids\": [true]}", "\"input_ids[0]\" is true"},
      {"{\"input_ids\": []}", "expected an array of at least one id"},
      {"{\"input_ids\": 3}", "expected an array of integers"},
      {"{\"labels\": [1]}", "\"input_ids\""},
      {"[1, 2]", "expected an object with \"input_ids\""},
      {"{\"input_ids\": [1, 2], \"labels\": [1]}", "it has 1 number; \"input_ids\" has 2"},
      {"{\"input_ids\": [1, 2], \"labels\": []}", "it has 0 numbers; \"input_ids\" has 2"},
      {"{\"input_ids\": [1], \"labels\": [-99]}", "\"labels[0]\" is -99"},
      {"{\"input_ids\": [1], \"labels\": [10]}", "\"labels[0]\" is 10"},
      {"{\"input_ids\": [1], \"labels\": 1}", "expected an array of integers"},
      {"{\"input_ids\": [1], \"attention_mask\": [2]}", "\"attention_mask[0]\" is 2"},
      {"{\"input_ids\": [1], \"token_type_ids\": [-1]}", "\"token_type_ids[0]\" is -1"},
      {"{\"input_ids\": [1]", "(byte "},
      {std::string("{\"input_ids\": [1]}\0", 19), "(byte 18)"},
  };
  for (const Case& wrong : cases) {
    Data data;
    const std::string file = data.file("rows.jsonl", "{\"input_ids\": [3]}\n\n" + wrong.line);
    DatasetOptions options = data.options({file});
    options.vocab_size = 10;
    const Error error = thrown_by([&] { open_dataset(options); });
    EXPECT_EQ(error.code(), Code::kFormat) << wrong.line;
    EXPECT_THAT(error.what(), HasSubstr("rows.jsonl:3: ")) << wrong.line;
    EXPECT_THAT(error.what(), HasSubstr(wrong.says));
  }
}

// Tables of columns have null where a row lacks a value. A language model's labels are its ids, but
// masked ids are not their own labels.
TEST(OpenDataset, LabelsThatAreNull_CountAsMissing) {
  Data data;
  DatasetOptions options =
      data.options({data.file("rows.jsonl", "{\"input_ids\": [3, 4], \"labels\": null}")});
  EXPECT_THAT(labels_of(open_dataset(options)->sample(0)), testing::ElementsAre(3, 4));
  options.task = Task::kMlm;
  const Error error = thrown_by([&] { open_dataset(options); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("rows.jsonl:1: \"labels\" is null; expected an array of "
                                      "integers, which task mlm learns"));
}

TEST(OpenDataset, InvalidTextLines_AreRefusedWithFileAndLine) {
  for (const std::string_view line : {"{\"text\": 5}", "{\"texts\": \"a\"}", "\"a\"", "{", "a"}) {
    Data data;
    const std::string file =
        data.file("t.jsonl", "{\"text\": \"one\"}\r\n" + std::string(line) + "\n");
    const Error error = thrown_by([&] { open_dataset(data.options({file})); });
    EXPECT_EQ(error.code(), Code::kFormat) << line;
    EXPECT_THAT(error.what(), HasSubstr("t.jsonl:2: ")) << line;
  }
}

TEST(OpenDataset, TextThatIsNoString_IsNamed) {
  for (const std::string_view before : {"", "{\"text\": \"one\"}\n"}) {
    Data data;
    const std::string file = data.file("t.jsonl", std::string(before) + "{\"text\": 5}\n");
    const Error error = thrown_by([&] { open_dataset(data.options({file})); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), HasSubstr("\"text\" is 5; expected a string")) << before;
  }
}

TEST(OpenDataset, JsonlFileWithoutJson_IsRefusedWithLineAndByte) {
  Data data;
  for (const std::string_view text : {"\nplain text\n", "\n{\"a\": 1}\n", "\n[1]", "\n{\"text\""}) {
    const Error error =
        thrown_by([&] { open_dataset(data.options({data.file("x.jsonl", text)})); });
    EXPECT_EQ(error.code(), Code::kFormat) << text;
    EXPECT_THAT(error.what(), HasSubstr("x.jsonl:2: ")) << text;
    EXPECT_THAT(error.what(), HasSubstr("(byte ")) << text;
  }
}

TEST(OpenDataset, DataThatCannotBeUsed_IsRefused) {
  Data data;
  const std::string text = data.file("text", "abc");
  const std::string rows = data.file("rows", "{\"input_ids\": [1]}");
  const Error none = thrown_by([&] { open_dataset(data.options({})); });
  EXPECT_EQ(none.code(), Code::kUsage);
  const Error mixed = thrown_by([&] { open_dataset(data.options({text, rows})); });
  EXPECT_EQ(mixed.code(), Code::kUsage);
  EXPECT_THAT(mixed.what(), HasSubstr("rows is JSONL with \"input_ids\""));
  const Error missing = thrown_by([&] { open_dataset(data.options({text, text + "2"})); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("text2"));

  EXPECT_EQ(open_dataset(data.options({text}, 4))->size(), 1);
  const Error few = thrown_by([&] { open_dataset(data.options({text}, 5)); });
  EXPECT_EQ(few.code(), Code::kUsage);
  EXPECT_THAT(few.what(), HasSubstr("text has 4 tokens, fewer than one sequence of 5"));
  const std::string nothing = data.file("e", "");
  const Error empty = thrown_by([&] { open_dataset(data.options({nothing, nothing, nothing})); });
  EXPECT_EQ(empty.code(), Code::kUsage);
  EXPECT_THAT(empty.what(), HasSubstr("e and 2 more files has "));
  const Error no_rows =
      thrown_by([&] { open_dataset(data.options({data.file("e.jsonl", "\n")})); });
  EXPECT_EQ(no_rows.code(), Code::kUsage);
  const Error length = thrown_by([&] { open_dataset(data.options({text}, 0)); });
  EXPECT_EQ(length.code(), Code::kUsage);
}

TEST(OpenDataset, DocumentsThatNothingSeparates_AreReportedOnce) {
  Data data;
  const std::string folder = data.folder("tokenizer");
  std::filesystem::create_directories(folder);
  std::filesystem::copy(test::source_file("tests/golden/tokenizer/small/gpt2/tokenizer.json"),
                        folder);
  const std::string two = data.file("two.jsonl", "{\"text\": \"a b c\"}\n{\"text\": \"d e f\"}\n");
  const std::string one = data.file("one.txt", "a b c d e f");
  const auto warnings = [&](std::vector<std::string> files, const std::string& end) {
    data.file("tokenizer/tokenizer_config.json",
              R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": )" + end + "}");
    DatasetOptions options = data.options(std::move(files));
    options.tokenizer = load_tokenizer(folder);
    testing::internal::CaptureStderr();
    open_dataset(options);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings({two}, "null"),
              HasSubstr("the tokenizer has no end token, so nothing separates the 2 documents in " +
                        two + "; name one as \"eos_token\" in tokenizer_config.json"));
  EXPECT_THAT(warnings({one, one}, "null"), HasSubstr("the 2 documents in "));
  EXPECT_EQ(warnings({one}, "null"), "");
  EXPECT_EQ(warnings({two}, "\"<|endoftext|>\""), "");
}

TEST(OpenDataset, TableForALanguageModel_IsRefusedWithTheRemedy) {
  Data data;
  for (const std::string name : {"a.csv", "a.tsv", "A.CSV"}) {
    DatasetOptions options = data.options({data.file(name, "text,label\nfine,1\ndull,0\n")});
    for (const Task task : {Task::kLm, Task::kMlm}) {
      options.task = task;
      const Error error = thrown_by([&] { open_dataset(options); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.what(), HasSubstr(name + " is a table"));
      EXPECT_THAT(error.what(), HasSubstr("--task classify"));
    }
  }
}

TEST(OpenDataset, JsonDocument_IsRefusedAndJsonlOfThatNameIsNot) {
  Data data;
  for (const char* text :
       {"[{\"text\": \"a fine film\"}]", "{\n  \"rows\": [\"a fine film\"]\n}"}) {
    const std::string file = data.file("a.json", text);
    const Error error = thrown_by([&] { open_dataset(data.options({file})); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("a.json is a JSON document, which would be read as plain"));
    EXPECT_THAT(error.what(), HasSubstr("jq -c '.[]' " + file + " >"));
  }
  const std::string lines = data.file("b.json", "{\"text\": \"a fine film\"}\n");
  EXPECT_GT(open_dataset(data.options({lines}))->size(), 0);
}

TEST(OpenDataset, BinaryFile_IsRefusedWithTheFirstBadByte) {
  Data data;
  const auto said = [&](std::string_view bytes) {
    const std::string path = data.file("picture", bytes);
    const Error error = thrown_by([&] { open_dataset(data.options({path})); });
    EXPECT_EQ(error.code(), Code::kFormat);
    return std::string(error.what());
  };
  using namespace std::string_view_literals;
  EXPECT_THAT(said("abc\0def"sv), HasSubstr("picture: byte 3 is 0x00, which is not UTF-8 text"));
  EXPECT_THAT(said("ab\xff\xfe"sv), HasSubstr("byte 2 is 0xff"));
  EXPECT_THAT(said("\xff\xfe"
                   "a\0"sv),
              HasSubstr("picture is UTF-16 text; convert it to UTF-8"));
  EXPECT_THAT(said("\xfe\xff\0a"sv), HasSubstr("picture is UTF-16 text"));
  EXPECT_THAT(said("\x1f\x8b\x08\0"sv), HasSubstr("picture is compressed by gzip; unpack it"));
  EXPECT_THAT(said("PAR1\x15\0"sv), HasSubstr("picture is a Parquet file; write its rows"));
  EXPECT_THAT(said("abcdPAR1\0"sv), HasSubstr("byte 8 is 0x00"));
  EXPECT_THAT(said("\xc3\xa9t\xe9 abcd\0"sv), HasSubstr("byte 3 is 0xe9"));
  EXPECT_EQ(open_dataset(data.options({data.file("t", "\xc3\xa9t\xc3\xa9")}))->size(), 1);
}

TEST(OpenDataset, TokenizerThatDoesNotFit_IsRefused) {
  Data data;
  DatasetOptions options = data.options({data.file("text", "abc")});
  options.vocab_size = 257;
  EXPECT_EQ(open_dataset(options)->size(), 1);
  options.vocab_size = 256;
  const Error small = thrown_by([&] { open_dataset(options); });
  EXPECT_EQ(small.code(), Code::kFormat);
  EXPECT_THAT(small.what(),
              HasSubstr("gives id 256, \"<|endoftext|>\", the model's vocabulary has 256"));
  options.tokenizer = nullptr;
  const Error without = thrown_by([&] { open_dataset(options); });
  EXPECT_EQ(without.code(), Code::kUsage);
  EXPECT_THAT(without.what(), HasSubstr("needs a tokenizer"));
}

TEST(Fingerprint, OfText_ChangesWithAnyByteTheRowsOrTheOrder) {
  Data data;
  const std::string file = data.file("a", "abcdefgh");
  const std::string other = data.file("b", "abcdefgi");
  const auto of = [&](std::vector<std::string> files, int64_t seq_len) {
    return open_dataset(data.options(std::move(files), seq_len))->fingerprint();
  };
  EXPECT_EQ(of({file}, 4), of({data.file("copy", "abcdefgh")}, 4));
  EXPECT_NE(of({file}, 4), of({other}, 4));
  EXPECT_NE(of({file}, 4), of({file}, 3));
  EXPECT_NE(of({file, other}, 4), of({other, file}, 4));
  EXPECT_NE(of({file, other}, 4), of({file}, 4));
}

TEST(Fingerprint, OfRows_ChangesWithAnyNumberAndWithWhereRowsEnd) {
  Data data;
  std::vector<uint64_t> seen;
  for (const std::string_view text :
       {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [3]}",
        "{\"input_ids\": [1]}\n{\"input_ids\": "
        "[2, 3]}",
        "{\"input_ids\": [1, 2]}\n{\"input_ids\": [4]}",
        "{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n{\"input_ids\": [3]}",
        "{\"input_ids\": [1, 2], \"attention_mask\": [1, 1]}\n{\"input_ids\": [3]}",
        "{\"input_ids\": [1, 2], \"token_type_ids\": [1, 1]}\n{\"input_ids\": [3]}",
        "{\"input_ids\": [1, 2]}\n{\"input_ids\": [3], \"labels\": [3]}"}) {
    seen.push_back(open_dataset(data.options({data.file("f", text)}))->fingerprint());
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t k = 0; k < i; ++k) EXPECT_NE(seen[i], seen[k]) << i << " " << k;
  }
}

TEST(OpenDocuments, EachDocument_IsASampleOfItsOwn) {
  Data data;
  const std::string lines =
      data.file("lines.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"\"}\n{\"text\": \"de\"}\n");
  const auto opened = open_documents(data.options({lines}));
  ASSERT_EQ(opened->size(), 2);  // the empty one has no tokens
  EXPECT_THAT(opened->sample(0).ids, ElementsAre('a', 'b', 'c', kEnd));
  EXPECT_THAT(opened->sample(1).ids, ElementsAre('d', 'e', kEnd));
  EXPECT_THAT(opened->sample(1).labels, IsEmpty());
  EXPECT_TRUE(opened->is_text());
  EXPECT_EQ(thrown_by([&] { (void)opened->sample(2); }).code(), Code::kUsage);
  const auto files = open_documents(
      data.options({data.file("x.txt", "xy"), data.file("none.txt", ""), data.file("z.txt", "z")}));
  ASSERT_EQ(files->size(), 2);
  EXPECT_THAT(files->sample(0).ids, ElementsAre('x', 'y', kEnd));
  EXPECT_THAT(files->sample(1).ids, ElementsAre('z', kEnd));
}

// Oracle: the pairs of neighbours in each document; a sample predicts each token from the one
// before. No document begins with the end id, so no sample may.
TEST(OpenDocuments, AnyLength_PredictsEveryTokenOnceAndNothingAcrossDocuments) {
  Data data;
  std::vector<std::pair<int64_t, int64_t>> want;
  std::string lines;
  for (int length = 0; length < 20; ++length) {
    std::string text;
    for (int i = 0; i < length; ++i) text += static_cast<char>('a' + (3 * length + i) % 26);
    lines += "{\"text\": \"" + text + "\"}\n";
    if (text.empty()) continue;
    const Ids ids = stream_of({text});
    for (size_t i = 0; i + 1 < ids.size(); ++i) want.emplace_back(ids[i], ids[i + 1]);
  }
  const std::string file = data.file("lines.jsonl", lines);
  for (const int64_t seq_len : {2, 3, 7, 64}) {
    const auto opened = open_documents(data.options({file}, seq_len));
    std::vector<std::pair<int64_t, int64_t>> got;
    for (int64_t k = 0; k < opened->size(); ++k) {
      const Ids ids = opened->sample(k).ids;
      EXPECT_NE(ids.front(), kEnd);
      EXPECT_LE(std::ssize(ids), seq_len);
      for (size_t i = 0; i + 1 < ids.size(); ++i) got.emplace_back(ids[i], ids[i + 1]);
    }
    EXPECT_EQ(got, want) << seq_len;
  }
}

TEST(OpenDocuments, TokenCache_GivesTheSameDocumentsAlsoIfALengthIsLost) {
  const TempFolder cache;
  Data data;
  const std::string file =
      data.file("lines.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"defghi\"}\n");
  const auto memory = open_documents(data.options({file}));
  DatasetOptions options = data.options({file});
  options.cache_folder = (cache / "tokens").string();
  for (int time = 0; time < 3; ++time) {
    const auto opened = open_documents(options);
    EXPECT_EQ(all_ids(*opened), all_ids(*memory));
    EXPECT_EQ(opened->fingerprint(), memory->fingerprint());
    int lengths = 0;
    for (const auto& entry : std::filesystem::directory_iterator(options.cache_folder)) {
      if (!entry.path().string().ends_with(".lengths.tokens")) continue;
      ++lengths;
      if (time == 1) std::filesystem::resize_file(entry.path(), 65);
    }
    EXPECT_EQ(lengths, 1);
  }
}

// The same ids, joined, are the same stream; as documents they are others.
TEST(OpenDocuments, OtherEndsOfDocuments_ChangeTheFingerprint) {
  Data data;
  DatasetOptions one = data.options({data.file("a.jsonl", "{\"text\": \"abab\"}\n")}, 8);
  DatasetOptions two =
      data.options({data.file("b.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"ab\"}\n")}, 8);
  EXPECT_NE(open_documents(one)->fingerprint(), open_documents(two)->fingerprint());
  two.seq_len = 3;
  EXPECT_NE(open_documents(two)->fingerprint(),
            open_documents(data.options(two.files, 8))->fingerprint());
}

TEST(OpenDocuments, RowsOfIdsAndNothing_AreRefused) {
  Data data;
  const auto refusal = [&](const std::string& name, std::string_view text) {
    const std::string file = data.file(name, text);
    const Error error = thrown_by([&] { (void)open_documents(data.options({file})); });
    EXPECT_EQ(error.code(), Code::kUsage);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal("rows.jsonl", "{\"input_ids\": [1, 2]}\n"), HasSubstr("expected text"));
  EXPECT_THAT(refusal("empty.jsonl", "{\"text\": \"\"}\n"),
              HasSubstr("no document of at least two tokens"));
}

}  // namespace
}  // namespace cleave::dataset_test
