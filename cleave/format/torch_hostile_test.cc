#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/format/torch_bin.h"
#include "cleave/format/torch_file.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"
#include "tests/support/torch_files.h"

namespace cleave {
namespace {

using test::dict_of;
using test::global;
using test::integer;
using test::number;
using test::pickle;
using test::storage;
using test::tensor;
using test::text;
using test::tuple;
using test::zip;
using test::ZipItem;
using testing::HasSubstr;

/// A file's bytes and what the format says about them. An empty `refusal` means: accepted.
struct Case {
  std::string subject;
  std::string bytes;
  std::string refusal;  ///< part of the message
};

/// Of this thread: other programs on the machine do not count.
double cpu_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

/// A file with this pickle and one storage "0" of 16 bytes.
std::string file(const std::string& pickled) {
  return test::torch_file(pickled, {std::string(16, 'd')});
}
/// The value that these operations leave.
std::string value(const std::string& operations) {
  return file(pickle(operations));
}
/// A tensor of four float elements "t" over storage "0".
std::string one(int64_t first, const std::vector<int64_t>& shape,
                const std::vector<int64_t>& strides) {
  return value(dict_of("t", tensor(storage("0", 4), first, shape, strides)));
}
std::string repeated(const std::string& part, size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i) all += part;
  return all;
}

const std::string kGood = pickle(dict_of("t", tensor(storage("0", 4), 0, {4}, {1})));

std::vector<Case> accepted_values() {
  return {
      {"one tensor", file(kGood), ""},
      {"None", value("N"), ""},
      {"an empty dict", value("}"), ""},
      {"a scalar", one(3, {}, {}), ""},
      {"an empty tensor at the end", one(4, {0}, {1}), ""},
      {"a huge empty tensor", one(0, {0, INT64_MAX}, {INT64_MAX, 1}), ""},
      {"64 dims", one(0, std::vector<int64_t>(64, 1), std::vector<int64_t>(64, INT64_MAX)), ""},
      {"a shared tuple",
       value("]" + tuple({1, 2}) +
             "q\x01"
             "ah\x01"
             "a"),
       ""},
      {"attributes of a state dict",
       value(global("collections", "OrderedDict") + ")R}" + text("_metadata") + "}sb"), ""},
      {"an integer of no bytes", value("\x8a" + number(0, 1)), ""},
      {"NaN", value("G\x7f\xf8" + number(0, 6)), ""},
      {"nesting just below the limit", value(repeated("]", 63) + repeated("a", 62)), ""},
      {"a parameter",
       value(global("torch._utils", "_rebuild_parameter") + "(" +
             tensor(storage("0", 4), 0, {4}, {1}) + "\x88" + global("collections", "OrderedDict") +
             ")RtR"),
       ""},
  };
}

std::vector<Case> code() {
  std::vector<Case> cases;
  for (const char* name :
       {"os.system", "posix.system", "builtins.eval", "builtins.exec", "builtins.getattr",
        "builtins.__import__", "subprocess.Popen", "torch._utils._rebuild_tensor", "torch.load",
        "torch.jit.load", "numpy.core.multiarray._reconstruct", "_codecs.encode",
        "collections.defaultdict", "torch.serialization._get_layout"}) {
    const std::string whole = name;
    const size_t dot = whole.rfind('.');
    cases.push_back({whole,
                     value(global(whole.substr(0, dot), whole.substr(dot + 1)) + "(" +
                           text("touch /tmp/owned") + "tR"),
                     "it wants to use '" + whole + "'"});
  }
  const std::string system = global("os", "system");
  cases.push_back({"a name with a dot inside", value(global("collections", "OrderedDict.x")),
                   "it wants to use 'collections.OrderedDict.x'"});
  cases.push_back({"a known name of another module", value(global("os", "OrderedDict")),
                   "it wants to use 'os.OrderedDict'"});
  cases.push_back({"a name that is no UTF-8", value(global("o\xff", "x")), "it wants to use"});
  cases.push_back({"a name without an end", value("cos\nsystem"), "has no end"});
  cases.push_back({"a name that never ends", value("c" + std::string(1000, 'x')), "has no end"});
  cases.push_back({"a known name called with another's arguments",
                   value(global("collections", "OrderedDict") + "(" + text("x") + "tR"),
                   "is called with 1 values; expected 0"});
  cases.push_back({"a call of a text", value(text("os.system") + ")R"), "that is no name"});
  cases.push_back({"a call of a storage type", value(global("torch", "FloatStorage") + ")R"),
                   "calls a storage type"});
  cases.push_back({"a call with a list", value(global("collections", "OrderedDict") + "]R"),
                   "with something that is no tuple"});
  cases.push_back({"a name as the value", value(global("torch", "Size")), "bare name or storage"});
  return cases;
}

/// Every operation of protocols 0 to 5 that torch.save does not write.
std::vector<Case> unknown_operations() {
  const std::string known = ".(NKMJGXU)]}tqrhjRbQaesuc\x80\x85\x86\x87\x88\x89\x8a";
  std::vector<Case> cases;
  for (int operation = 0; operation < 256; ++operation) {
    if (known.find(static_cast<char>(operation)) != std::string::npos) continue;
    cases.push_back({"operation " + std::to_string(operation),
                     value("N" + std::string(1, static_cast<char>(operation)) + "x\ny\n"),
                     "operation " + std::to_string(operation) + " is not among"});
  }
  return cases;
}

std::vector<Case> broken_stacks() {
  return {
      {"no bytes", file(""), "does not begin with its protocol"},
      {"no protocol", file("N."), "does not begin with its protocol"},
      {"protocol 4", file("\x80\x04N."), "of protocol 4"},
      {"protocol twice", value("\x80\x02N"), "once and first"},
      {"no end", file("\x80\x02N"), "the pickle ends"},
      {"bytes after the end", file("\x80\x02N.N"), "bytes after the pickle's end"},
      {"nothing left", value(""), "leaves 0 values"},
      {"two values left", value("NN"), "leaves 2 values"},
      {"a mark left", value("N("), "leaves 1 values and 1 marks"},
      {"tuple of three of two", value("NN\x87"), "takes a value where there is none"},
      {"tuple without a mark", value("Nt"), "a mark where there is none"},
      {"a value from below a mark", value("]N(a"), "takes a value where there is none"},
      {"append to nothing", value("Na"), "takes a value where there is none"},
      {"append to a tuple", value(")Na"), "something that is no list"},
      {"append to a dict", value("}(Ne"), "something that is no list"},
      {"append to a text", value(text("x") + "Na"), "something that is no list"},
      {"member of a list", value("]" + text("k") + "Ns"), "something that is no dict"},
      {"members of a tensor", value(tensor(storage("0", 4), 0, {4}, {1}) + "(" + text("k") + "Nu"),
       "something that is no dict"},
      {"members of a number", value("K\x01(" + text("k") + "Nu"), "something that is no dict"},
      {"a key without a value", value("}(" + text("k") + "u"), "a key without a value"},
      {"a tuple as a key", value("})Ns"), "neither a text nor an integer"},
      {"a key twice", value("}" + text("k") + "Ns" + text("k") + "Ns"), "the key 'k' twice"},
      {"a number as a key twice", value("}K\x01NsJ\x01" + number(0, 3) + "Ns"),
       "the key '1' twice"},
      {"attributes of a list", value("]}b"), "something that is no OrderedDict"},
      {"attributes that are no dict", value(global("collections", "OrderedDict") + ")R]b"),
       "something that is no OrderedDict"},
      {"memo never filled", value("h\x05"), "place 5 of its memo"},
      {"memo of nothing", value("q" + number(0, 1) + "N"), "takes a value where there is none"},
      {"an integer of 9 bytes", value("\x8a\x09" + number(1, 9)), "does not fit in 64 bits"},
      {"an integer cut", file("\x80\x02J\x01\x02"), "the pickle ends"},
      {"a text longer than the file", value("X\xff\xff\xff\xff"), "the pickle ends"},
      {"a text that is no UTF-8", value(text("\xff\xfe")), "is not UTF-8"},
  };
}

std::vector<Case> bombs() {
  std::string doubling = "]q" + number(0, 1);
  for (char i = 0; i < 40; ++i) {
    const std::string before(1, i), next(1, static_cast<char>(i + 1));
    doubling += "]h" + before + "ah" + before + "aq" + next;
  }
  return {
      {"lists that double forty times", value("(" + doubling + "t"), "are more than"},
      {"a list that contains itself", value("]q" + number(0, 1) + "h" + number(0, 1) + "a"),
       "one contains itself"},
      {"a dict that contains itself",
       value("}q" + number(0, 1) + text("k") + "h" + number(0, 1) + "s"), "one contains itself"},
      {"deep nesting", value(repeated("]", 100000) + repeated("a", 99999)), "nested deeper than"},
      {"deep tuples", value("N" + repeated("\x85", 100000)), "nested deeper than"},
      {"a hundred thousand marks", value("N" + repeated("(", 100000)), "100000 marks"},
      {"memo at the last place", value("Nr\xff\xff\xff\xffj\xfe\xff\xff\xff"),
       "place 4294967294 of its memo"},
      {"more values than allowed", value("]" + repeated("Na", kMaxPickleValues)), "more than"},
  };
}

std::vector<Case> broken_storages() {
  const auto id = [](const std::string& parts) { return value("(" + parts + "tQ"); };
  const std::string type = global("torch", "FloatStorage");
  return {
      {"id of four parts", id(text("storage") + type + text("0") + text("cpu")),
       "no tuple of 5 values"},
      {"id that is a text", value(text("0") + "Q"), "no tuple of 5 values"},
      {"id of another kind", id(text("module") + type + text("0") + text("cpu") + integer(4)),
       "does not begin with 'storage'"},
      {"type that is a text",
       id(text("storage") + text("FloatStorage") + text("0") + text("cpu") + integer(4)),
       "is no name"},
      {"type that is no storage",
       id(text("storage") + global("torch", "Size") + text("0") + text("cpu") + integer(4)),
       "a storage is of type Size"},
      {"key that is a number", id(text("storage") + type + integer(0) + text("cpu") + integer(4)),
       "expected a text"},
      {"negative length", id(text("storage") + type + text("0") + text("cpu") + integer(-4)),
       "is negative"},
      {"missing", value(tensor(storage("1", 4), 0, {4}, {1})), "storage '1' is missing"},
      {"key that is a path", value(tensor(storage("../version", 4), 0, {4}, {1})),
       "storage '../version' is missing"},
      {"longer than its bytes", value(tensor(storage("0", 5), 0, {4}, {1})), "need 20"},
      {"shorter than its bytes", value(tensor(storage("0", 3), 0, {3}, {1})), "need 12"},
      {"bytes that wrap to 16", value(tensor(storage("0", (int64_t{1} << 62) + 4), 0, {4}, {1})),
       "64 bits"},
      {"two types",
       value("(" + tensor(storage("0", 4), 0, {4}, {1}) +
             tensor(storage("0", 4, "IntStorage"), 0, {4}, {1}) + "t"),
       "is said to have 4 int32 and 4 fp32"},
      {"two lengths",
       value("(" + tensor(storage("0", 4), 0, {4}, {1}) + tensor(storage("0", 2), 0, {2}, {1}) +
             "t"),
       "is said to have 2 fp32 and 4 fp32"},
      {"a type that is not supported",
       value(tensor(storage("0", 4, "ComplexFloatStorage"), 0, {4}, {1})),
       "it wants to use 'torch.ComplexFloatStorage'"},
      {"a storage as the value", value(storage("0", 4)), "bare name or storage"},
  };
}

std::vector<Case> broken_tensors() {
  return {
      {"one element past the end", one(1, {4}, {1}), "ends at element 5"},
      {"begins past the end", one(5, {0}, {1}), "ends at element 5"},
      {"stride past the end", one(0, {2}, {4}), "ends at element 5"},
      {"rows past the end", one(0, {2, 2}, {3, 1}), "ends at element 5"},
      {"begins before the start", one(-1, {4}, {1}), "is negative"},
      {"negative size", one(0, {-4}, {1}), "is negative"},
      {"negative stride", one(3, {4}, {-1}), "is negative"},
      {"more strides than dims", one(0, {4}, {4, 1}), "1 dims and 2 strides"},
      {"sizes that wrap", one(0, {int64_t{1} << 32, int64_t{1} << 32}, {0, 0}), "64 bits"},
      {"strides that wrap", one(0, {3, 1}, {int64_t{1} << 62, 1}), "ends at"},
      {"strides that wrap to 0", one(0, {5, 5}, {int64_t{1} << 62, int64_t{1} << 62}), "64 bits"},
      {"begin that wraps", one(INT64_MAX, {2, 2}, {INT64_MAX, 2}), "64 bits"},
      {"expanded to a billion", one(0, {1000000000}, {0}), "expanded tensors are not read"},
      {"expanded to one more", one(0, {5}, {0}), "expanded tensors are not read"},
      {"65 dims", one(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)),
       "more than 64 dims"},
      {"of no storage",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(NK" + number(0, 1) + "))\x89}tR"),
       "is made of no storage"},
      {"with hooks",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             tuple({4}) + tuple({1}) + "\x89" + dict_of("h", "N") + "tR"),
       "has hooks"},
      {"of five values",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             tuple({4}) + tuple({1}) + "\x89tR"),
       "is called with 5 values; expected 6"},
      {"shape that is a number",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             integer(4) + tuple({1}) + "\x89}tR"),
       "are no tuple"},
      {"parameter of no tensor", value(global("torch._utils", "_rebuild_parameter") + "(N\x88}tR"),
       "is made of no tensor"},
  };
}

/// The entries of a good file.
std::vector<ZipItem> items() {
  return {{"x/data.pkl", kGood}, {"x/data/0", std::string(16, 'd')}};
}
std::string with(const std::function<void(std::vector<ZipItem>&)>& change) {
  std::vector<ZipItem> changed = items();
  change(changed);
  return zip(changed);
}

std::vector<Case> accepted_zips() {
  return {
      {"as torch writes it", zip(items()), ""},
      {"without the zip64 end", zip(items(), false), ""},
      {"sizes in the headers", with([](auto& i) { i[0].flags = i[1].flags = 0; }), ""},
      {"entries that are not known", with([](auto& i) {
         i.push_back({"x/.data/id", "7"});
       }),
       ""},
      {"an extra field", with([](auto& i) { i[1].local_extra = "FB" + number(2, 2) + "ZZ"; }), ""},
      {"data before the pickle", with([](auto& i) { std::swap(i[0], i[1]); }), ""},
  };
}

std::vector<Case> broken_entries() {
  const std::string wide = number(1, 2) + number(16, 2) + number(16, 8) + number(16, 8);
  return {
      {"compressed", with([](auto& i) { i[0].method = 8; }), "is compressed (method 8)"},
      {"a deflated bomb", with([](auto& i) {
         i[1].method = 8;
         i[1].extra_bytes_claimed = 4000000000;
       }),
       "is compressed (method 8)"},
      {"encrypted", with([](auto& i) { i[1].flags = 1; }), "is encrypted"},
      {"two of one name", with([](auto& i) { i.push_back(i[1]); }), "is there twice"},
      {"two pickles", with([](auto& i) {
         i.push_back({"y/data.pkl", kGood});
       }),
       "has both x/data.pkl and y/data.pkl"},
      {"another name in its own header", with([](auto& i) { i[1].local_name = "x/data/1"; }),
       "another name in its own header"},
      {"another size in its own header", with([](auto& i) {
         i[0].flags = 0;
         i[0].extra_bytes_claimed = 1;
       }),
       "bytes in the directory and"},
      {"longer than the file", with([](auto& i) { i[1].extra_bytes_claimed = 100; }),
       "the entries end at byte"},
      {"longer than its own bytes", with([](auto& i) { i[0].extra_bytes_claimed = 9; }),
       "overlaps"},
      {"the same bytes as another", with([](auto& i) {
         i[1].bytes = items()[1].bytes + test::zip({{"x/data/1", "dddd"}});
         i.push_back({"x/data/1", ""});
         i[2].header_moved = uint64_t{0} - (i[1].bytes.size() - 16);
       }),
       "overlaps"},
      {"no header where it should be", with([](auto& i) { i[1].header_moved = 1; }),
       "has no header at byte"},
      {"header after the entries", with([](auto& i) { i[1].header_moved = 1 << 20; }),
       "the entries end at byte"},
      {"two zip64 fields", with([&](auto& i) { i[1].extra = wide + wide; }), "two zip64 fields"},
      {"a field longer than the rest", with([](auto& i) { i[1].extra = "FB\xff\xff"; }),
       "in the middle of an entry"},
      {"a name with NUL", with([](auto& i) {
         i.push_back({std::string("x/\0y", 4), "z"});
       }),
       "none or unprintable ones"},
      {"an empty name", with([](auto& i) {
         i.push_back({"", "z"});
       }),
       "none or unprintable ones"},
      {"a name of 2000 bytes", with([](auto& i) {
         i.push_back({std::string(2000, 'n'), "z"});
       }),
       "2000 bytes"},
  };
}

std::vector<Case> broken_contents() {
  return {
      {"no pickle", with([](auto& i) { i.erase(i.begin()); }), "has no data.pkl"},
      {"the pickle at the top", with([](auto& i) { i[0].name = "data.pkl"; }), "has no data.pkl"},
      {"the pickle two folders down", with([](auto& i) { i[0].name = "x/y/data.pkl"; }),
       "has no data.pkl"},
      {"a TorchScript program", with([](auto& i) {
         i.push_back({"x/constants.pkl", "N."});
       }),
       "TorchScript"},
      {"big-endian", with([](auto& i) {
         i.push_back({"x/byteorder", "big"});
       }),
       "its byte order is 'big'"},
      {"no entries", zip({}), "is no zip file"},
  };
}

std::string changed_end(size_t from_end, const std::string& bytes, bool with_end64 = true) {
  std::string file = zip(items(), with_end64);
  return file.replace(file.size() - from_end, bytes.size(), bytes);
}

std::vector<Case> broken_frames() {
  const std::string good = zip(items());
  constexpr size_t kEnd = 22, kLocator = 20, kEnd64 = 56;
  return {
      {"no bytes", "", "is no zip file"},
      {"the first four bytes", good.substr(0, 4), "was cut"},
      {"older torch", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
       "from before version 1.6"},
      {"a bare pickle", kGood, "is a bare pickle"},
      {"a safetensors file", number(2, 8) + "{}", "is no zip file"},
      {"a gzip file", "\x1f\x8b\x08" + std::string(40, 'x'), "is no zip file"},
      {"bytes before it", "x" + good, "is no zip file"},
      {"bytes after it", good + "x", "has bytes or a comment after it"},
      {"a comment", changed_end(2, number(1, 2)) + "c", "has bytes or a comment after it"},
      {"a comment that is not there", changed_end(2, number(1, 2)), "has a comment"},
      {"a second disk", changed_end(kEnd - 4, number(1, 2)), "on several disks"},
      {"one entry more on this disk", changed_end(kEnd - 8, number(9, 2)), "on several disks"},
      {"one entry more", changed_end(kEnd - 8, number(3, 2) + number(3, 2), false),
       "entries cannot be in a directory"},
      {"one entry less", changed_end(kEnd - 8, number(1, 2) + number(1, 2), false),
       "more than 1 entries"},
      {"directory elsewhere", changed_end(kEnd - 16, number(3, 4), false), "does not end where"},
      {"directory of no bytes", changed_end(kEnd - 12, number(0, 4), false), "does not end where"},
      {"ends that contradict each other", changed_end(kEnd - 8, number(9, 2) + number(9, 2)),
       "contradict each other, 9 and 2"},
      {"zip64 end elsewhere", changed_end(kEnd + kLocator - 8, number(0, 8)),
       "the zip64 end is said to be at byte 0"},
      {"zip64 end missing", changed_end(kEnd + kLocator + kEnd64, "xxxx"), "there is no zip64 end"},
      {"zip64 with 2^64 - 1 entries",
       changed_end(kEnd + kLocator + kEnd64 - 24, number(UINT64_MAX, 8) + number(UINT64_MAX, 8)),
       "contradict each other"},
      {"zip64 with a directory of 2^63 bytes",
       changed_end(kEnd + kLocator + kEnd64 - 40, number(uint64_t{1} << 63, 8)),
       "contradict each other"},
  };
}

class TorchHostile : public testing::Test {
 protected:
  /// A new file each time: cutting an old one makes some file systems wait for the disk.
  void write(const std::string& bytes) {
    std::filesystem::remove(folder / "x.bin");
    std::ofstream(folder / "x.bin", std::ios::binary) << bytes;
  }
  void expect_verdicts(const std::vector<Case>& cases, bool accepted) {
    for (const Case& c : cases) {
      SCOPED_TRACE(c.subject);
      write(c.bytes);
      const double start = cpu_seconds();
      if (accepted) {
        EXPECT_NO_THROW(TorchFile::open(folder / "x.bin"));
      } else {
        const Error error = test::thrown_by([&] { TorchFile::open(folder / "x.bin"); });
        EXPECT_EQ(error.code(), Code::kFormat) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(c.refusal));
        EXPECT_THAT(error.what(), HasSubstr("x.bin"));
      }
      EXPECT_LT(cpu_seconds() - start, 0.5);
    }
  }
  test::TempFolder folder;
};

TEST_F(TorchHostile, UnusualButLegalValues_AreAccepted) {
  expect_verdicts(accepted_values(), true);
}
TEST_F(TorchHostile, UnusualButLegalZipFiles_AreAccepted) {
  expect_verdicts(accepted_zips(), true);
}
TEST_F(TorchHostile, Code_IsRefusedByItsName) {
  expect_verdicts(code(), false);
  EXPECT_FALSE(std::filesystem::exists("/tmp/owned"));
}
TEST_F(TorchHostile, OperationsOfOtherProtocols_AreRefused) {
  expect_verdicts(unknown_operations(), false);
}
TEST_F(TorchHostile, BrokenStacks_AreRefused) {
  expect_verdicts(broken_stacks(), false);
}
TEST_F(TorchHostile, Bombs_AreRefused) {
  expect_verdicts(bombs(), false);
}
TEST_F(TorchHostile, BrokenStorages_AreRefused) {
  expect_verdicts(broken_storages(), false);
}
TEST_F(TorchHostile, BrokenTensors_AreRefused) {
  expect_verdicts(broken_tensors(), false);
}
TEST_F(TorchHostile, BrokenEntries_AreRefused) {
  expect_verdicts(broken_entries(), false);
}
TEST_F(TorchHostile, BrokenContents_AreRefused) {
  expect_verdicts(broken_contents(), false);
}
TEST_F(TorchHostile, BrokenFrames_AreRefused) {
  expect_verdicts(broken_frames(), false);
}

// Whatever is cut off, the rest is never taken for a file.
TEST_F(TorchHostile, EveryTruncation_IsRefused) {
  const std::string whole = zip(items());
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_verdicts({{"first " + std::to_string(size) + " bytes", whole.substr(0, size), ""}},
                    false);
  }
}

// A file is accepted with one byte changed only if its tensors are still inside of it.
TEST_F(TorchHostile, EveryChangedByte_IsRefusedOrStillReads) {
  const std::string whole = zip(items());
  size_t num_accepted = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int change : {0x01, 0x80, 0xff}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ change);
      write(changed);
      try {
        const TorchBin bin = TorchBin::open(folder / "x.bin");
        for (const TensorInfo& tensor : bin.list()) {
          std::vector<std::byte> bytes(block_bytes(tensor, {}));
          bin.read_block(tensor.name, {}, bytes);
        }
        ++num_accepted;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), Code::kFormat) << error.what() << ", byte " << at;
      }
    }
  }
  EXPECT_GT(num_accepted, 0U);  // bytes of tensors, of times and checksums are free
}

TEST_F(TorchHostile, ValuesThatAreNoStateDict_AreNoModel) {
  const auto refusal = [&](const std::string& bytes) {
    write(bytes);
    return std::string(test::thrown_by([&] { TorchBin::open(folder / "x.bin"); }).what());
  };
  EXPECT_THAT(refusal(value("]")), HasSubstr("holds a list; expected a dict"));
  EXPECT_THAT(refusal(value(dict_of("t", "K\x01"))), HasSubstr("'t' is an integer"));
  EXPECT_THAT(refusal(value("}K\x01Ns")), HasSubstr("has the number 1 as a key"));
  EXPECT_THAT(refusal(value(dict_of("a\n", "N"))), HasSubstr("control characters"));
}

}  // namespace
}  // namespace cleave
