#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <set>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "cleave/data/tokens.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/temp_folder.h"
#include "tests/support/threads.h"
#include "tests/support/thrown.h"

namespace cleave::tokenized_file_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;

/// Encodes each byte as the id byte * 1000 and counts the calls, of which the first takes
/// `first_call_s`. No end id.
class CountingTokenizer final : public Tokenizer {
 public:
  explicit CountingTokenizer(int64_t vocab_size, uint64_t fingerprint = 1, double first_call_s = 0)
      : vocab_size_(vocab_size), first_call_s_(first_call_s) {
    fingerprint_ = fingerprint;
  }
  [[nodiscard]] int64_t vocab_size() const override { return vocab_size_; }
  [[nodiscard]] std::optional<std::string> token(int64_t /*id*/) const override { return {}; }
  [[nodiscard]] std::optional<int64_t> id_of(std::string_view /*token*/) const override {
    return {};
  }
  [[nodiscard]] bool is_special(int64_t /*id*/) const override { return false; }
  [[nodiscard]] int calls() const { return calls_; }
  /// That have encoded texts.
  [[nodiscard]] size_t num_threads() const { return threads_.size(); }

 protected:
  [[nodiscard]] std::vector<int64_t> encode_text(std::string_view text,
                                                 bool /*parse_special*/) const override {
    const double start = monotonic_s();
    {
      const std::lock_guard lock(mutex_);
      threads_.insert(std::this_thread::get_id());
    }
    if (++calls_ == 1) {
      while (monotonic_s() - start < first_call_s_) {
      }
    }
    std::vector<int64_t> ids;
    for (const char c : text) ids.push_back(1000 * static_cast<uint8_t>(c));
    return ids;
  }
  [[nodiscard]] std::string decode_ids(std::span<const int64_t> /*ids*/) const override {
    return {};
  }

 private:
  int64_t vocab_size_;
  double first_call_s_;
  mutable std::atomic<int> calls_ = 0;
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

std::vector<int64_t> ids_of(const Tokens& tokens) {
  std::vector<int64_t> ids(static_cast<size_t>(tokens.size()));
  tokens.copy(0, ids);
  return ids;
}

/// A text file and a cache folder that does not exist yet.
struct Setting {
  TempFolder folder;
  std::string file = (folder / "data.txt").string();
  std::string cache = (folder / "a" / "cache").string();

  Setting() { write_atomic(file, std::string_view("\1\2\3A")); }
  [[nodiscard]] Tokens open(const Tokenizer& tokenizer) const {
    return tokenized_file(file, FileKind::kText, tokenizer, cache).ids;
  }
  [[nodiscard]] std::vector<fs::path> cached() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(cache)) {
      if (entry.path().extension() == ".tokens") paths.push_back(entry.path());
    }
    return paths;
  }
};

// As `eval` reads it, whose output is its result.
TEST(TokenizedFile, LongReadingWithoutACache_IsShownOnATerminalOnly) {
  const Setting setting;
  const std::string rows = setting.folder / "rows.jsonl";
  write_atomic(rows, std::string_view("{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
  const auto shown = [&](int columns) {
    const CountingTokenizer tokenizer(1 << 20, 1, /*first_call_s=*/1.05);
    test::Captured out(columns);
    const TokenizedFile file = tokenized_file(rows, FileKind::kJsonTexts, tokenizer, "");
    EXPECT_EQ(file.ids.size(), 2);
    return out.take();
  };
  setenv("TERM", "xterm", 1);
  EXPECT_THAT(shown(100), HasSubstr("tokenized MiB 0/1 ["));
  EXPECT_EQ(shown(0), "");
}

TEST(TokenizedFile, SecondOpen_ReadsTheCache) {
  const Setting setting;
  for (const int64_t vocab_size : {65536, 65537}) {  // 2 bytes and 4 bytes per id
    const CountingTokenizer tokenizer(vocab_size, static_cast<uint64_t>(vocab_size));
    for (int time = 0; time < 3; ++time) {
      const Tokens tokens = setting.open(tokenizer);
      EXPECT_THAT(ids_of(tokens), ElementsAre(1000, 2000, 3000, 65000));
      EXPECT_EQ(tokens.max_id(), 65000);
      EXPECT_EQ(tokenizer.calls(), 1);
    }
  }
  std::vector<uintmax_t> sizes;
  for (const fs::path& path : setting.cached()) sizes.push_back(fs::file_size(path));
  EXPECT_THAT(sizes, testing::UnorderedElementsAre(64 + 4 * 2, 64 + 4 * 4));
}

TEST(TokenizedFile, IdsAbove16Bits_ComeBack) {
  Setting setting;
  write_atomic(setting.file, std::string_view("\xC3\xBF\x42"));
  const CountingTokenizer tokenizer(255001);
  EXPECT_THAT(ids_of(setting.open(tokenizer)), ElementsAre(195000, 191000, 66000));
  EXPECT_THAT(ids_of(setting.open(tokenizer)), ElementsAre(195000, 191000, 66000));
  EXPECT_EQ(tokenizer.calls(), 1);
}

TEST(TokenizedFile, WithoutCacheFolder_IsMemoryOnlyWithTheSameChecksum) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  const Tokens memory = tokenized_file(setting.file, FileKind::kText, tokenizer, "").ids;
  EXPECT_FALSE(fs::exists(setting.cache));
  const Tokens mapped = setting.open(tokenizer);
  EXPECT_EQ(memory.checksum(), mapped.checksum());
  EXPECT_EQ(ids_of(memory), ids_of(mapped));
  EXPECT_EQ(tokenizer.calls(), 2);
}

// Without a lock, processes would write the same files at the same time.
TEST(TokenizedFile, CacheOnADiskWithoutLocks_IsMemoryOnlyWithTheSameChecksum) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  const Tokens memory = tokenized_file(setting.file, FileKind::kText, tokenizer, "").ids;
  const ScopedFileHook hook(
      [](FileCall call, const std::string&) { return call == FileCall::kLock ? ENOSYS : 0; });
  const Tokens unlocked = setting.open(tokenizer);
  EXPECT_EQ(ids_of(memory), ids_of(unlocked));
  EXPECT_EQ(memory.checksum(), unlocked.checksum());
  for (const auto& entry : fs::directory_iterator(setting.cache)) {
    EXPECT_EQ(entry.path().filename(), ".tokens.lock");
  }
}

TEST(TokenizedFile, OtherContentOrTokenizer_IsTokenizedAgain) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536, 1);
  const CountingTokenizer other(65536, 2);
  (void)setting.open(tokenizer);
  (void)setting.open(other);
  EXPECT_EQ(other.calls(), 1);
  write_atomic(setting.file, std::string_view("\1\2\4A"));  // as long as before
  EXPECT_THAT(ids_of(setting.open(other)), ElementsAre(1000, 2000, 4000, 65000));
}

TEST(TokenizedFile, DamagedCache_IsReplaced) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  (void)setting.open(tokenizer);
  ASSERT_EQ(setting.cached().size(), 1U);
  const fs::path path = setting.cached().front();
  const std::string good = read_file(path);
  std::vector<std::string> damaged{"", good.substr(0, 63), good.substr(0, good.size() - 1),
                                   good + "x", std::string(good.size(), '\0')};
  for (size_t at = 0; at < good.size(); at += 5) {  // a byte of every field and of the ids
    damaged.push_back(good);
    damaged.back()[at] = static_cast<char>(good[at] ^ 1);
  }
  int calls = 1;
  for (const std::string& bytes : damaged) {
    write_atomic(path, bytes);
    EXPECT_THAT(ids_of(setting.open(tokenizer)), ElementsAre(1000, 2000, 3000, 65000));
    EXPECT_EQ(tokenizer.calls(), ++calls);
    EXPECT_EQ(read_file(path), good);
  }
}

TEST(TokenizedFile, CacheOfOtherData_IsNotTrusted) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  (void)setting.open(tokenizer);
  const fs::path path = setting.cached().front();
  const Setting other;
  write_atomic(other.file, std::string_view("\5\6\7\10"));
  (void)other.open(tokenizer);
  fs::copy_file(other.cached().front(), path, fs::copy_options::overwrite_existing);
  EXPECT_THAT(ids_of(setting.open(tokenizer)), ElementsAre(1000, 2000, 3000, 65000));
}

TEST(TokenizedFile, ConcurrentCalls_TokenizeOnce) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  std::vector<std::thread> threads;
  std::atomic<int64_t> ids = 0;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] { ids += setting.open(tokenizer).size(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ids, 8 * 4);
  EXPECT_EQ(tokenizer.calls(), 1);
}

TEST(TokenizedFile, CacheFolderThatCannotBeMade_IsAnIoErrorWithItsName) {
  const Setting setting;
  const CountingTokenizer tokenizer(65536);
  const std::string below_a_file = setting.file + "/cache";
  const Error error = thrown_by(
      [&] { (void)tokenized_file(setting.file, FileKind::kText, tokenizer, below_a_file); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), HasSubstr(below_a_file));
}

TEST(TokenizedFile, IdsOutsideTheTokenizersVocabulary_AreABug) {
  const Setting setting;
  const CountingTokenizer tokenizer(65000);
  EXPECT_EQ(thrown_by([&] { (void)setting.open(tokenizer); }).code(), Code::kBug);
}

TEST(Tokens, FileTruncatedWhileOpen_IsAFormatErrorNotASignal) {
  const TempFolder folder;
  TokensWriter writer(folder / "ids", 1000);
  writer.append(std::vector<int64_t>(10'000, 7));
  writer.commit(5);
  const auto tokens = Tokens::open(folder / "ids", 5);
  ASSERT_TRUE(tokens);
  fs::resize_file(folder / "ids", 1000);
  std::vector<int64_t> ids(400);
  EXPECT_NO_THROW(tokens->copy(0, ids));
  EXPECT_EQ(ids, std::vector<int64_t>(400, 7));
  EXPECT_EQ(thrown_by([&] { tokens->copy(9000, ids); }).code(), Code::kFormat);
  EXPECT_FALSE(Tokens::open(folder / "ids", 5));
}

TEST(Tokens, CopyOutsideOfThem_IsRefused) {
  Tokens tokens(10);
  tokens.append(std::vector<int64_t>{1, 2, 3});
  std::vector<int64_t> out(2);
  tokens.copy(1, out);
  EXPECT_THAT(out, ElementsAre(2, 3));
  EXPECT_EQ(tokens.back(), 3);
  EXPECT_EQ(thrown_by([&] { tokens.copy(2, out); }).code(), Code::kUsage);
  EXPECT_EQ(thrown_by([&] { tokens.copy(-1, out); }).code(), Code::kUsage);
}

// Oracle: the bytes of the documents, in order; each is encoded once.
TEST(TokenizedFile, Documents_AreEncodedOnAllThreadsInOrder) {
  const test::Threads three(3);
  const TempFolder folder;
  const CountingTokenizer tokenizer(256 * 1000);
  constexpr int kDocuments = 3000;  // more than a MiB, so several batches
  std::string rows;
  std::vector<int64_t> ids, lengths;
  for (int i = 0; i < kDocuments; ++i) {
    const std::string text = str(i, std::string(static_cast<size_t>(i % 900), 'a'));
    rows += str("{\"text\": \"", text, "\"}\n");
    for (const char c : text) ids.push_back(1000 * c);
    lengths.push_back(std::ssize(text));
  }
  write_atomic(folder / "a.jsonl", rows);
  const TokenizedFile file =
      tokenized_file(folder / "a.jsonl", FileKind::kJsonTexts, tokenizer, "");
  EXPECT_EQ(ids_of(file.ids), ids);
  EXPECT_EQ(ids_of(file.lengths), lengths);
  EXPECT_EQ(tokenizer.calls(), kDocuments);
  EXPECT_EQ(tokenizer.num_threads(), 3);
}

// Oracle: the bytes of the text.
TEST(TokenizedFile, PiecesOfAText_AreEncodedOnAllThreadsInOrder) {
  const test::Threads three(3);
  const TempFolder folder;
  const CountingTokenizer tokenizer(256 * 1000);
  std::string text;
  for (int i = 0; text.size() < size_t{2} << 20; ++i) text += str("line ", i, " of a text\n");
  write_atomic(folder / "a.txt", text);
  std::vector<int64_t> ids;
  for (const char c : text) ids.push_back(1000 * c);
  EXPECT_EQ(ids_of(tokenized_file(folder / "a.txt", FileKind::kText, tokenizer, "").ids), ids);
  EXPECT_EQ(tokenizer.num_threads(), 3);
}

}  // namespace
}  // namespace cleave::tokenized_file_test
