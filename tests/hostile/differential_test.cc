// Differential tests against the reference libraries, if Python has them: of changed safetensors
// files Cleave accepts a subset of theirs and reads the same tensors; for changed texts the
// tokenizers give the same ids. Each failure names the number of the input; the seed is fixed.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/text/utf8.h"
#include "cleave/tokenizer/tokenizer.h"
#include "tests/hostile/hostile.h"
#include "tests/hostile/mutation.h"
#include "tests/support/paths.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// -- safetensors ----------------------------------------------------------------------------------

/// Cleave's verdict on a file: null, or name, dtype, shape, begin and end of each tensor.
json verdict_of(const std::string& file) {
  try {
    const auto* first = reinterpret_cast<const std::byte*>(file.data());
    const uint64_t size = safetensors_header_size(first, file.size(), "input");
    const auto header =
        parse_safetensors_header(std::string_view(file).substr(8, size), file.size(), "input");
    json tensors = json::array();
    for (const StoredTensor& t : header.tensors) {
      tensors.push_back({t.name, file_name(t.dtype), t.shape, t.begin, t.end});
    }
    return tensors;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat) << error.what();
    return nullptr;
  }
}

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const HostileCase& c : safetensors_set().cases) {
    if (c.refusal.empty() && !c.make && files.size() < 20) files.push_back(c.bytes);
  }
  EXPECT_EQ(files.size(), 20U);
  return files;
}

/// A changed file; in three of four cases the length field is corrected to the new header size.
std::string changed_file(Mutator& mutator, const std::string& seed) {
  if (mutator.below(4) == 0) return mutator(seed);
  const size_t header = static_cast<uint8_t>(seed[0]) + 256U * static_cast<uint8_t>(seed[1]);
  std::string file = mutator(seed, 8, 8 + header);
  const size_t size = header + file.size() - seed.size();
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(i < 2 ? (size >> (8 * i)) & 0xff : 0);
  return file;
}

const char* const kCompareFiles = R"(
import json, struct, sys
import safetensors
inputs = open(sys.argv[1], "rb").read()
both = ours_alone = theirs_alone = at = 0
for number, line in enumerate(open(sys.argv[2], encoding="utf-8")):
    size, = struct.unpack_from("<Q", inputs, at)
    data, at = inputs[at + 8:at + 8 + size], at + 8 + size
    ours = json.loads(line)
    try:
        theirs = safetensors.deserialize(data)
    except Exception as error:
        if ours is not None:
            sys.exit(f"input {number}: only we accept {data!r}: {error}")
        continue
    if ours is None:
        theirs_alone += 1
        continue
    both += 1
    got = sorted((n, d, s, data[b:e]) for n, d, s, b, e in ours)
    want = sorted((n, t["dtype"], t["shape"], bytes(t["data"])) for n, t in theirs)
    if got != want:
        sys.exit(f"input {number}: {data!r}: we read {got}, they {want}")
print(f"both accept {both}, the reference alone {theirs_alone}")
)";

/// Pieces of headers, valid and invalid.
const std::vector<std::string>& header_words() {
  static const std::vector<std::string> words{
      "\"",
      "{",
      "}",
      "[",
      "]",
      ",",
      ":",
      "0",
      "4",
      "-1",
      "4.0",
      "1e0",
      " ",
      "\n",
      "null",
      "true",
      "\"U8\"",
      "\"I8\"",
      "\"F32\"",
      "\"F8_E4M3\"",
      "\"t\"",
      "\\u0074",
      "\\u0000",
      "\"shape\"",
      "\"dtype\"",
      "\"__metadata__\":{},",
      "18446744073709551615",
      "9223372036854775807",
      R"("e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)",
      "\xC3\xA9",
      "\xFF"};
  return words;
}

TEST(Differential, ChangedSafetensorsFiles_AreAPartOfWhatTheReferenceAccepts) {
  if (!python_has("safetensors")) GTEST_SKIP() << "no safetensors in the Python of CLEAVE_PYTHON";
  const TempFolder folder;
  const std::vector<std::string> good = seeds();
  Mutator mutator(7, header_words());
  const size_t num_batches = rounds(1, 50);
  for (size_t batch = 0; batch < num_batches; ++batch) {
    std::ofstream inputs(folder / "inputs", std::ios::binary);
    std::ofstream verdicts(folder / "verdicts");
    for (size_t i = 0; i < 20'000; ++i) {
      const std::string file = changed_file(mutator, good[i % good.size()]);
      for (size_t b = 0; b < 8; ++b) inputs.put(static_cast<char>((file.size() >> (8 * b)) & 0xff));
      inputs << file;
      verdicts << (file.size() < 8 ? json() : verdict_of(file)).dump() << '\n';
    }
    inputs.close();
    verdicts.close();
    const RunResult ran = run_python(kCompareFiles, {folder / "inputs", folder / "verdicts"});
    ASSERT_EQ(ran.exit_code, 0) << "batch " << batch << ": " << ran.err;
    EXPECT_THAT(ran.out, testing::HasSubstr("both accept"));
    std::printf("20000 changed safetensors files: %s", ran.out.c_str());
  }
}

// -- tokenizers -----------------------------------------------------------------------------------

const char* const kCompareIds = R"(
import json, sys
import tokenizers
theirs = tokenizers.Tokenizer.from_file(sys.argv[1])
for number, line in enumerate(open(sys.argv[2], encoding="utf-8")):
    text, ids = json.loads(line)
    want = theirs.encode(text, add_special_tokens=False).ids
    if ids != want:
        sys.exit(f"text {number}: {text!r}: we give {ids}, they {want}")
print(f"{number + 1} texts")
)";

/// Lines of real texts in several languages, and strings that are hard for tokenizers.
std::vector<std::string> text_words(const std::vector<fs::path>& texts) {
  std::vector<std::string> words{" ",
                                 "  ",
                                 "\n",
                                 "\r\n",
                                 "\t",
                                 "<s>",
                                 "</s>",
                                 "1234",
                                 "'s",
                                 "'LL",
                                 "[CLS]",
                                 "[MASK]",
                                 "#",
                                 "##a",
                                 "\xC2\xA0",
                                 "e\xCC\x81",
                                 "\xC3\xA9",
                                 "\xE4\xBD\xA0",
                                 "...",
                                 "<|endoftext|>",
                                 "\xE2\x80\x8D",
                                 "\xEF\xAC\x81",
                                 "\xF0\x9F\x91\xA9",
                                 "\xE2\x96\x81",
                                 "\xC4\xA0",
                                 "\xEF\xBF\xBD",
                                 "\xD7\xA9",
                                 "\xE0\xA4\x95\xE0\xA5\x8D",
                                 "\xEA\xB0\x80",
                                 "I\xCC\x87",
                                 "\xC3\x9F",
                                 "_",
                                 "@@",
                                 "a"};
  for (const fs::path& text : texts) {
    std::ifstream file(text);
    std::string line;
    for (int i = 0; i < 60 && std::getline(file, line); ++i) words.push_back(line.substr(0, 80));
  }
  return words;
}

/// A tokenizer of tests/golden, or a published one in $CLEAVE_DATA.
struct Subject {
  std::string name;
  bool published = false;
};

void PrintTo(const Subject& subject, std::ostream* out) {
  *out << subject.name;
}

class TokenizerDifferential : public testing::TestWithParam<Subject> {
 protected:
  void SetUp() override {
    const fs::path source = test::source_file(".");
    folder_ = source / "tests/golden/tokenizer/small" / GetParam().name;
    texts_ = {source / "LICENSE", source / "tests/golden/tokenizer/small/strings.jsonl"};
    if (!GetParam().published) return;
    const char* data = std::getenv("CLEAVE_DATA");  // NOLINT(concurrency-mt-unsafe)
    if (data == nullptr) GTEST_SKIP() << "CLEAVE_DATA is not set: it names the tokenizers' folder";
    folder_ = fs::path(data) / "tokenizers" / GetParam().name;
    texts_ = {fs::path(data) / "text/french/fr_gsd-dev.txt",
              fs::path(data) / "text/tinyshakespeare/input.txt"};
  }

  fs::path folder_;
  std::vector<fs::path> texts_;
};

TEST_P(TokenizerDifferential, ChangedTexts_GiveTheReferencesIds) {
  if (!python_has("tokenizers")) GTEST_SKIP() << "no tokenizers in the Python of CLEAVE_PYTHON";
  const auto tokenizer = load_tokenizer(folder_.string());
  const TempFolder own;
  const std::vector<std::string> words = text_words(texts_);
  Mutator mutator(11, words);
  const size_t count = rounds(1000, 50'000);
  {
    std::ofstream texts(own / "texts");
    for (size_t i = 0; i < count; ++i) {
      std::string text = words[mutator.below(words.size())] + words[mutator.below(words.size())];
      text = replace_bad_utf8(mutator(std::move(text)));
      texts << json{text, tokenizer->encode(text, {.add_special = false})}.dump() << '\n';
    }
  }
  const RunResult ran = run_python(kCompareIds, {folder_ / "tokenizer.json", own / "texts"});
  EXPECT_EQ(ran.exit_code, 0) << ran.err;
  std::printf("%s: %s", GetParam().name.c_str(), ran.out.c_str());
}

std::string subject_name(const testing::TestParamInfo<Subject>& subject) {
  std::string name = subject.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Small, TokenizerDifferential,
                         testing::Values(Subject{"bert"}, Subject{"gemma"}, Subject{"gpt2"},
                                         Subject{"llama2"}, Subject{"llama3"},
                                         Subject{"xlm-roberta"}),
                         subject_name);
INSTANTIATE_TEST_SUITE_P(Real, TokenizerDifferential,
                         testing::Values(Subject{"bert-base-uncased", true}, Subject{"gpt2", true},
                                         Subject{"llama2", true}, Subject{"llama3", true},
                                         Subject{"stories260K-tok512", true}),
                         subject_name);

// A tokenizer.json with changed bytes is refused, or encodes any bytes to ids of its vocabulary.
TEST_P(TokenizerDifferential, ChangedTokenizerFiles_AreRefusedOrSound) {
  std::ifstream file(folder_ / "tokenizer.json", std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(good.empty());
  const HostileSet set = tokenizer_set();
  const TempFolder folder;
  Mutator mutator(3, {"\"", "{", "}", "[", "]", ",", ":", "0", "-1", "1e400", "null", "true",
                      "9223372036854775808", "\\u0000", "\xFF", "\"x\":1,"});
  const size_t count = rounds(std::max<size_t>(4, 200'000 / good.size()),
                              std::max<size_t>(100, 20'000'000 / good.size()));
  size_t num_accepted = 0;
  for (size_t i = 0; i < count; ++i) {
    SCOPED_TRACE(i);
    // The first bytes hold the components, the rest is the vocabulary.
    const size_t end = mutator.below(2) == 0 ? std::min<size_t>(good.size(), 4000) : good.size();
    std::ofstream(folder / "tokenizer.json", std::ios::binary) << mutator(good, 0, end);
    try {
      set.read(folder.path());
      ++num_accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kFormat) << error.what();
    }
  }
  std::printf("%s: %zu changed files, %zu accepted\n", GetParam().name.c_str(), count,
              num_accepted);
}

}  // namespace
}  // namespace cleave::test
