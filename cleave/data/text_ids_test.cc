#include "cleave/data/text_ids.h"

#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/stop.h"
#include "cleave/data/tokens.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "tests/support/memory.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tests/support/thrown.h"

namespace cleave::text_ids_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;
using testing::IsEmpty;

/// A text with prose, code, numbers, runs of blanks, accents and characters of three bytes.
std::string mixed_text(int num_lines) {
  std::string text;
  for (int i = 0; i < num_lines; ++i) {
    text += str("Line ", i, " of the text, it's ", i * i * 7, " long.\n");
    if (i % 3 == 0) text += "    if (a[i]  !=\tb) { return \"d\xC3\xA9j\xC3\xA0 vu\"; }\r\n\n";
    if (i % 5 == 0) text += "\xE4\xBD\xA0\xE5\xA5\xBD\xE3\x80\x82\xE4\xB8\x96\xE7\x95\x8C\n";
    if (i % 7 == 0) text += "without a full stop\nand then   \n \n more";
  }
  return text;
}

std::vector<std::shared_ptr<const Tokenizer>> tokenizers() {
  std::vector<std::shared_ptr<const Tokenizer>> all{byte_tokenizer()};
  for (const char* name : {"bert", "gemma", "gpt2", "llama2", "llama3", "xlm-roberta"}) {
    all.push_back(load_tokenizer(test::source_file(str("tests/golden/tokenizer/small/", name))));
  }
  return all;
}

/// The ids in pieces, and how many pieces there were.
std::pair<std::vector<int64_t>, int> ids_in_pieces(const std::string& path,
                                                   const Tokenizer& tokenizer, size_t bytes) {
  std::vector<int64_t> ids;
  int num_pieces = 0;
  for_text_ids(path, tokenizer, bytes, [&](std::span<const int64_t> part, uint64_t /*done*/) {
    ids.insert(ids.end(), part.begin(), part.end());
    ++num_pieces;
  });
  return {ids, num_pieces};
}

// Oracle: the ids of the whole text.
TEST(TextIds, Pieces_HaveTheIdsOfTheWholeText) {
  const TempFolder folder;
  const std::string path = folder / "text.txt", text = mixed_text(1000);
  write_atomic(path, std::string_view(text));
  for (const auto& tokenizer : tokenizers()) {
    const std::vector<int64_t> whole = tokenizer->encode(text, {.add_special = false});
    for (const size_t bytes : {size_t{4096}, size_t{7001}, text.size()}) {
      const auto [ids, num_pieces] = ids_in_pieces(path, *tokenizer, bytes);
      EXPECT_TRUE(ids == whole) << tokenizer->kind() << ", pieces of " << bytes;
      EXPECT_GE(num_pieces, bytes == text.size() ? 1 : 4) << tokenizer->kind();
    }
  }
}

// Lists of words, and languages without spaces, have no other blanks. Oracle: as above.
TEST(TextIds, LineEndsOfWindows_DivideAText) {
  const TempFolder folder;
  const std::string path = folder / "text.txt";
  std::string text;
  for (int i = 0; i < 4000; ++i) text += str("\xE4\xBD\xA0\xE5\xA5\xBD", i * i, "\r\n");
  write_atomic(path, std::string_view(text));
  for (const auto& tokenizer : tokenizers()) {
    const auto [ids, num_pieces] = ids_in_pieces(path, *tokenizer, 8192);
    EXPECT_TRUE(ids == tokenizer->encode(text, {.add_special = false})) << tokenizer->kind();
    EXPECT_GE(num_pieces, 4) << tokenizer->kind();
  }
}

TEST(TextIds, TextWithoutBlanks_IsOnePiece) {
  const TempFolder folder;
  const std::string path = folder / "text.txt", text(30'000, 'a');
  write_atomic(path, std::string_view(text));
  const auto [ids, num_pieces] = ids_in_pieces(path, *byte_tokenizer(), 4096);
  EXPECT_EQ(num_pieces, 1);
  EXPECT_EQ(ids, std::vector<int64_t>(30'000, 'a'));
  write_atomic(path, std::string_view());
  EXPECT_EQ(ids_in_pieces(path, *byte_tokenizer(), 4096).second, 0);
}

// Oracle: the ids of the text without the mark.
TEST(TextIds, ByteOrderMarkAtTheBeginning_IsNotTokenized) {
  const TempFolder folder;
  const std::string path = folder / "text.txt", mark = "\xEF\xBB\xBF", text = mixed_text(400);
  for (const std::string& rest : {text, mark + "a", std::string("a"), std::string()}) {
    write_atomic(path, std::string_view(mark + rest));
    for (const auto& tokenizer : tokenizers()) {
      EXPECT_TRUE(ids_in_pieces(path, *tokenizer, 4096).first ==
                  tokenizer->encode(rest, {.add_special = false}))
          << tokenizer->kind() << ", " << rest.size() << " bytes";
    }
  }
}

TEST(TextIds, WrongByteInALaterPiece_IsNamedByItsPlaceInTheFile) {
  const TempFolder folder;
  std::string text = mixed_text(1000);
  const size_t at = text.find("Line", 20'000);
  text[at] = '\xFF';
  write_atomic(folder / "text.txt", std::string_view(text));
  const Error error =
      thrown_by([&] { (void)ids_in_pieces(folder / "text.txt", *byte_tokenizer(), 4096); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr(str("text.txt: byte ", at, " is 0xff")));
}

constexpr uint64_t kBytes = uint64_t{64} << 20;
constexpr uint64_t kMostResident = uint64_t{32} << 20;

/// Writes lines until the file has kBytes.
void write_large(const std::string& path, const std::string& line) {
  std::ofstream file(path);
  std::string block;
  while (block.size() < (size_t{1} << 20)) block += line;
  for (uint64_t written = 0; written < kBytes; written += block.size()) file << block;
}

// The file has twice the bytes, and its ids four times, that may be resident.
TEST(TokenizedFile, LargerThanTheMemory_IsTokenizedInBoundedMemory) {
  if (!test::reset_peak()) GTEST_SKIP() << "this kernel does not reset VmHWM";
  const test::Threads many(16);  // each holds a piece
  const TempFolder folder;
  const auto tokenizer = byte_tokenizer();
  write_large(folder / "large.txt", "a line of a text that is long enough.\n");
  write_large(folder / "large.jsonl", "{\"text\": \"a line of a text that is long enough.\"}\n");
  for (const FileKind kind : {FileKind::kText, FileKind::kJsonTexts}) {
    const std::string path = folder / (kind == FileKind::kText ? "large.txt" : "large.jsonl");
    const uint64_t before = test::resident_bytes("VmRSS");
    ASSERT_TRUE(test::reset_peak());
    const Tokens tokens = tokenized_file(path, kind, *tokenizer, folder / "tokens").ids;
    EXPECT_GT(tokens.size(), static_cast<int64_t>(kBytes / 2));
    EXPECT_LT(test::resident_bytes("VmHWM"), before + kMostResident) << name(kind);
  }
}

/// The names of partial files in a folder.
std::vector<std::string> partial_files(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(kPartialSuffix)) names.push_back(name);
  }
  return names;
}

TEST(TokenizedFile, FullDiskOrSignal_LeavesNoPartialFile) {
  const TempFolder folder;
  const std::string path = folder / "text.txt", cache = folder / "tokens";
  write_atomic(path, std::string_view(mixed_text(20'000)));
  const auto tokenize = [&] {
    (void)tokenized_file(path, FileKind::kText, *byte_tokenizer(), cache);
  };
  {
    const ScopedFileHook full([](FileCall call, const std::string& file) {
      return call == FileCall::kWrite && file.ends_with(".partial") ? ENOSPC : 0;
    });
    const Error error = thrown_by(tokenize);
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
  EXPECT_THAT(partial_files(cache), IsEmpty());
  {
    const StopSignal stop;
    ASSERT_EQ(std::raise(SIGINT), 0);
    try {
      tokenize();
      ADD_FAILURE() << "the signal was ignored";
    } catch (const Stopped& stopped) {
      EXPECT_EQ(stopped.signal, SIGINT);
    }
  }
  EXPECT_THAT(partial_files(cache), IsEmpty());
}

TEST(TokenizedFile, PartialFileOfAKilledWriter_IsRemoved) {
  const TempFolder folder;
  const fs::path cache = folder / "tokens";
  fs::create_directory(cache);
  write_atomic(folder / "text.txt", std::string_view("a text"));
  std::ofstream(cache / "0123456789abcdef.tokens.partial") << "half";
  (void)tokenized_file(folder / "text.txt", FileKind::kText, *byte_tokenizer(), cache);
  EXPECT_THAT(partial_files(cache), IsEmpty());
}

}  // namespace
}  // namespace cleave::text_ids_test
