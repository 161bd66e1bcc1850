#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "cleave/format/block.h"
#include "cleave/format/torch_file.h"
#include "tests/hostile/hostile.h"
#include "tests/support/torch_files.h"

namespace cleave::test {
namespace {

/// A file with this pickle and one storage "0" of 16 bytes.
std::string file(const std::string& pickled) {
  return test::torch_file(pickled, {std::string(16, 'd')});
}
/// A file whose value these operations compute.
std::string value(const std::string& operations) {
  return file(pickle(operations));
}
/// A tensor of four float elements "t" over storage "0".
std::string one(int64_t first, const std::vector<int64_t>& shape,
                const std::vector<int64_t>& strides) {
  return value(dict_of("t", tensor(storage("0", 4), first, shape, strides)));
}
const std::string kGood = pickle(dict_of("t", tensor(storage("0", 4), 0, {4}, {1})));

std::vector<HostileCase> accepted_values() {
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
      {"an integer of 0 bytes", value("\x8a" + number(0, 1)), ""},
      {"NaN", value("G\x7f\xf8" + number(0, 6)), ""},
      {"nesting just below the limit", value(repeated("]", 63) + repeated("a", 62)), ""},
      {"a parameter",
       value(global("torch._utils", "_rebuild_parameter") + "(" +
             tensor(storage("0", 4), 0, {4}, {1}) + "\x88" + global("collections", "OrderedDict") +
             ")RtR"),
       ""},
  };
}

std::vector<HostileCase> code() {
  std::vector<HostileCase> cases;
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
                     "the pickle uses '" + whole + "'"});
  }
  const std::string system = global("os", "system");
  cases.push_back({"a name with a dot inside", value(global("collections", "OrderedDict.x")),
                   "the pickle uses 'collections.OrderedDict.x'"});
  cases.push_back({"a known name of another module", value(global("os", "OrderedDict")),
                   "the pickle uses 'os.OrderedDict'"});
  cases.push_back({"a name that is not UTF-8", value(global("o\xff", "x")), "the pickle uses"});
  cases.push_back({"a name without an end", value("cos\nsystem"), "has no end"});
  cases.push_back({"a name that never ends", value("c" + std::string(1000, 'x')), "has no end"});
  cases.push_back({"a known name called with another's arguments",
                   value(global("collections", "OrderedDict") + "(" + text("x") + "tR"),
                   "is called with 1 values; expected 0"});
  cases.push_back({"a call of a string", value(text("os.system") + ")R"), "that is not a name"});
  cases.push_back({"a call of a storage type", value(global("torch", "FloatStorage") + ")R"),
                   "calls a storage type"});
  cases.push_back({"a call with a list", value(global("collections", "OrderedDict") + "]R"),
                   "with a value that is not a tuple"});
  cases.push_back({"a name as the value", value(global("torch", "Size")), "bare name or storage"});
  return cases;
}

/// Every operation of protocols 0 to 5 that torch.save does not write.
std::vector<HostileCase> unknown_operations() {
  const std::string known = ".(NKMJGXU)]}tqrhjRbQaesuc\x80\x85\x86\x87\x88\x89\x8a";
  std::vector<HostileCase> cases;
  for (int operation = 0; operation < 256; ++operation) {
    if (known.find(static_cast<char>(operation)) != std::string::npos) continue;
    cases.push_back({"operation " + std::to_string(operation),
                     value("N" + std::string(1, static_cast<char>(operation)) + "x\ny\n"),
                     "operation " + std::to_string(operation) + " is not among"});
  }
  return cases;
}

std::vector<HostileCase> broken_stacks() {
  return {
      {"no bytes", file(""), "does not begin with its protocol"},
      {"no protocol", file("N."), "does not begin with its protocol"},
      {"protocol 4", file("\x80\x04N."), "sets protocol 4"},
      {"protocol twice", value("\x80\x02N"), "once and first"},
      {"no end", file("\x80\x02N"), "the pickle ends"},
      {"bytes after the end", file("\x80\x02N.N"), "bytes after the pickle's end"},
      {"an empty stack", value(""), "leaves 0 values"},
      {"two values on the stack", value("NN"), "leaves 2 values"},
      {"a mark on the stack", value("N("), "leaves 1 values and 1 marks"},
      {"a tuple of three from two values", value("NN\x87"), "pops a value where there is none"},
      {"tuple without a mark", value("Nt"), "a mark where there is none"},
      {"a value from below a mark", value("]N(a"), "pops a value where there is none"},
      {"append to nothing", value("Na"), "pops a value where there is none"},
      {"append to a tuple", value(")Na"), "a value that is not a list"},
      {"append to a dict", value("}(Ne"), "a value that is not a list"},
      {"append to a string", value(text("x") + "Na"), "a value that is not a list"},
      {"member of a list", value("]" + text("k") + "Ns"), "a value that is not a dict"},
      {"members of a tensor", value(tensor(storage("0", 4), 0, {4}, {1}) + "(" + text("k") + "Nu"),
       "a value that is not a dict"},
      {"members of a number", value("K\x01(" + text("k") + "Nu"), "a value that is not a dict"},
      {"a key without a value", value("}(" + text("k") + "u"), "a key without a value"},
      {"a tuple as a key", value("})Ns"), "neither a string nor an integer"},
      {"a key twice", value("}" + text("k") + "Ns" + text("k") + "Ns"), "the key 'k' twice"},
      {"a number as a key twice", value("}K\x01NsJ\x01" + number(0, 3) + "Ns"),
       "the key '1' twice"},
      {"attributes of a list", value("]}b"), "a value that is not an OrderedDict"},
      {"attributes that are not a dict", value(global("collections", "OrderedDict") + ")R]b"),
       "a value that is not an OrderedDict"},
      {"memo never filled", value("h\x05"), "entry 5 of its memo"},
      {"memo of nothing", value("q" + number(0, 1) + "N"), "pops a value where there is none"},
      {"an integer of 9 bytes", value("\x8a\x09" + number(1, 9)), "does not fit in 64 bits"},
      {"a truncated integer", file("\x80\x02J\x01\x02"), "the pickle ends"},
      {"a string longer than the file", value("X\xff\xff\xff\xff"), "the pickle ends"},
      {"a string that is not UTF-8", value(text("\xff\xfe")), "is not UTF-8"},
  };
}

/// A list of tensors that share all parts of the first one.
std::string consistent_tensors(size_t num_dims, size_t count) {
  auto kept = [place = 0](const std::string& operations) mutable {
    return operations + "q" + number(static_cast<uint64_t>(place++), 1);
  };
  const std::string sizes = tuple(std::vector<int64_t>(num_dims, 1));
  std::string first = kept(global("torch._utils", "_rebuild_tensor_v2")) + "(";
  for (const std::string& part : {storage("0", 4), integer(0), sizes, sizes, std::string("\x89"),
                                  global("collections", "OrderedDict") + ")R"}) {
    first += kept(part);
  }
  std::string again = "h" + number(0, 1) + "(";
  for (uint64_t place = 1; place < 7; ++place) again += "h" + number(place, 1);
  return value("](" + first + "tR" + repeated(again + "tR", count - 1) + "e");
}
/// A list with `count` copies of the value of these operations.
std::string list_of(const std::string& operations, size_t count) {
  return value("](" + repeated(operations, count) + "e");
}

std::vector<HostileCase> bombs() {
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
      {"memo at the last index", value("Nr\xff\xff\xff\xffj\xfe\xff\xff\xff"),
       "entry 4294967294 of its memo"},
      {"more values than allowed", value("]" + repeated("Na", kMaxPickleValues)),
       "the pickle has more than 240000 values"},
      {"the most lists allowed", "", "", [] { return list_of("]", kMaxPickleValues - 1); }},
      {"the most dicts allowed", "", "", [] { return list_of("}", kMaxPickleValues - 1); }},
      {"the most lists of None allowed", "", "",
       [] { return list_of("]Na", kMaxPickleValues / 2 - 1); }},
      {"the most tuples of an integer allowed", "", "",
       [] { return list_of("K\x05\x85", kMaxPickleValues / 2 - 1); }},
      {"the most members allowed", "", "",
       [] {
         std::string members = "}(";
         for (uint64_t i = 0; i < kMaxPickleValues / 2 - 1; ++i) {
           members += "J" + number(i, 4) + "N";
         }
         return value(members + "u");
       }},
      {"30,000 tensors", "", "", [] { return consistent_tensors(1, 30'000); }},
      {"tensors that share a shape of 64 dims", "", "strings and shapes",
       [] { return consistent_tensors(64, 53'000); }},
      {"a long string many times", "", "strings and shapes",
       [] {
         return value("](" + text(std::string(1 << 20, 'x')) + "q\x01" + repeated("h\x01", 20'000) +
                      "e");
       }},
      {"a long key many times", "", "strings and shapes",
       [] {
         return value("](" + text(std::string(1 << 20, 'x')) + "q\x01" +
                      repeated("}h\x01Ns", 20'000) + "e");
       }},
      {"a value used too often", "", "uses values more than",
       [] {
         return value("](" + text("x") + "q\x01" + repeated("h\x01", 2 * kMaxPickleValues) + "e");
       }},
      {"a memo entry for every byte", "", "memo has more than",
       [] {
         std::string places = "N";
         for (uint64_t i = 0; i <= kMaxPickleValues; ++i) places += "r" + number(i, 4);
         return value(places);
       }},
      {"a million marks", value("N" + repeated("(", 1'000'000)), "open marks"},
  };
}

std::vector<HostileCase> broken_storages() {
  const auto id = [](const std::string& parts) { return value("(" + parts + "tQ"); };
  const std::string type = global("torch", "FloatStorage");
  return {
      {"id of four parts", id(text("storage") + type + text("0") + text("cpu")),
       "not a tuple of 5 values"},
      {"id that is a string", value(text("0") + "Q"), "not a tuple of 5 values"},
      {"id that is not of a storage",
       id(text("module") + type + text("0") + text("cpu") + integer(4)),
       "does not begin with 'storage'"},
      {"type that is a string",
       id(text("storage") + text("FloatStorage") + text("0") + text("cpu") + integer(4)),
       "is not a name"},
      {"type that is not a storage",
       id(text("storage") + global("torch", "Size") + text("0") + text("cpu") + integer(4)),
       "a storage is of type Size"},
      {"key that is a number", id(text("storage") + type + integer(0) + text("cpu") + integer(4)),
       "expected a string"},
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
       "is declared with 4 int32 and 4 fp32"},
      {"two lengths",
       value("(" + tensor(storage("0", 4), 0, {4}, {1}) + tensor(storage("0", 2), 0, {2}, {1}) +
             "t"),
       "is declared with 2 fp32 and 4 fp32"},
      {"a type that is not supported",
       value(tensor(storage("0", 4, "ComplexFloatStorage"), 0, {4}, {1})),
       "the pickle uses 'torch.ComplexFloatStorage'"},
      {"a storage as the value", value(storage("0", 4)), "bare name or storage"},
  };
}

std::vector<HostileCase> broken_tensors() {
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
      {"expanded to a billion", one(0, {1000000000}, {0}), "expanded tensors are not supported"},
      {"expanded to one more", one(0, {5}, {0}), "expanded tensors are not supported"},
      {"65 dims", one(0, std::vector<int64_t>(65, 1), std::vector<int64_t>(65, 1)),
       "more than 64 dims"},
      {"without a storage",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(NK" + number(0, 1) + "))\x89}tR"),
       "is not a storage"},
      {"with hooks",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             tuple({4}) + tuple({1}) + "\x89" + dict_of("h", "N") + "tR"),
       "has hooks"},
      {"with five values",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             tuple({4}) + tuple({1}) + "\x89tR"),
       "is called with 5 values; expected 6"},
      {"shape that is a number",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             integer(4) + tuple({1}) + "\x89}tR"),
       "are not a tuple"},
      {"with a number for requires_grad",
       value(global("torch._utils", "_rebuild_tensor_v2") + "(" + storage("0", 4) + integer(0) +
             tuple({4}) + tuple({1}) + integer(0) + global("collections", "OrderedDict") + ")RtR"),
       "requires_grad is not a bool"},
      {"a size of two values",
       value(global("torch", "Size") + "(" + tuple({4}) + tuple({4}) + "tR"),
       "is called with 2 values; expected 1"},
      {"a size of nothing", value(global("torch", "Size") + ")R"),
       "is called with 0 values; expected 1"},
      {"parameter of two values",
       value(global("torch._utils", "_rebuild_parameter") + "(" +
             tensor(storage("0", 4), 0, {4}, {1}) + "\x88tR"),
       "is called with 2 values; expected 3"},
      {"parameter without a tensor",
       value(global("torch._utils", "_rebuild_parameter") + "(N\x88}tR"), "is not a tensor"},
  };
}

/// The entries of a valid file.
std::vector<ZipItem> items() {
  return {{"x/data.pkl", kGood}, {"x/data/0", std::string(16, 'd')}};
}
std::string with(const std::function<void(std::vector<ZipItem>&)>& change) {
  std::vector<ZipItem> changed = items();
  change(changed);
  return zip(changed);
}

std::vector<HostileCase> accepted_zips() {
  return {
      {"as torch writes it", zip(items()), ""},
      {"without the zip64 end", zip(items(), false), ""},
      {"sizes in the headers", with([](auto& i) { i[0].flags = i[1].flags = 0; }), ""},
      {"unknown entries", with([](auto& i) {
         i.push_back({"x/.data/id", "7"});
       }),
       ""},
      {"an extra field", with([](auto& i) { i[1].local_extra = "FB" + number(2, 2) + "ZZ"; }), ""},
      {"a comment", with([](auto& i) { i[0].comment = "PK\x01\x02"; }), ""},
      {"data before the pickle", with([](auto& i) { std::swap(i[0], i[1]); }), ""},
  };
}

std::vector<HostileCase> broken_entries() {
  const std::string wide = number(1, 2) + number(16, 2) + number(16, 8) + number(16, 8);
  return {
      {"compressed", with([](auto& i) { i[0].method = 8; }), "is compressed (method 8)"},
      {"a deflated bomb", with([](auto& i) {
         i[1].method = 8;
         i[1].extra_bytes_claimed = 4000000000;
       }),
       "is compressed (method 8)"},
      {"encrypted", with([](auto& i) { i[1].flags = 1; }), "is encrypted"},
      {"two entries with one name", with([](auto& i) { i.push_back(i[1]); }), "occurs twice"},
      {"two pickles", with([](auto& i) {
         i.push_back({"y/data.pkl", kGood});
       }),
       "has both x/data.pkl and y/data.pkl"},
      {"another name in its local header", with([](auto& i) { i[1].local_name = "x/data/1"; }),
       "another name in its local header"},
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
      {"header in the last bytes of the entries", with([](auto& i) { i[1].header_moved = 40; }),
       "should begin at byte"},
      {"two zip64 fields", with([&](auto& i) { i[1].extra = wide + wide; }), "two zip64 fields"},
      {"a field longer than the rest", with([](auto& i) { i[1].extra = "FB\xff\xff"; }),
       "in the middle of an entry"},
      {"a name with NUL", with([](auto& i) {
         i.push_back({std::string("x/\0y", 4), "z"});
       }),
       "is not printable"},
      {"an empty name", with([](auto& i) {
         i.push_back({"", "z"});
       }),
       "is not printable"},
      {"a name of 2000 bytes", with([](auto& i) {
         i.push_back({std::string(2000, 'n'), "z"});
       }),
       "2000 bytes"},
  };
}

std::vector<HostileCase> broken_contents() {
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
      {"no entries", zip({}), "is not a zip file"},
  };
}

std::string changed_end(size_t from_end, const std::string& bytes, bool with_end64 = true) {
  std::string file = zip(items(), with_end64);
  return file.replace(file.size() - from_end, bytes.size(), bytes);
}

std::vector<HostileCase> broken_frames() {
  const std::string good = zip(items());
  constexpr size_t kEnd = 22, kLocator = 20, kEnd64 = 56;
  return {
      {"no bytes", "", "is not a zip file"},
      {"the first four bytes", good.substr(0, 4), "is truncated"},
      {"older torch", "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
       "from before version 1.6"},
      {"a bare pickle", kGood, "is a bare pickle"},
      {"a safetensors file", number(2, 8) + "{}", "is not a zip file"},
      {"a gzip file", "\x1f\x8b\x08" + std::string(40, 'x'), "is not a zip file"},
      {"bytes before it", "x" + good, "is not a zip file"},
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
      {"directory of 0 bytes", changed_end(kEnd - 12, number(0, 4), false), "does not end where"},
      {"ends that contradict each other", changed_end(kEnd - 8, number(9, 2) + number(9, 2)),
       "contradict each other, 9 and 2"},
      {"zip64 end elsewhere", changed_end(kEnd + kLocator - 8, number(0, 8)),
       "the zip64 locator points to byte 0"},
      {"zip64 end missing", changed_end(kEnd + kLocator + kEnd64, "xxxx"), "there is no zip64 end"},
      {"zip64 with 2^64 - 1 entries",
       changed_end(kEnd + kLocator + kEnd64 - 24, number(UINT64_MAX, 8) + number(UINT64_MAX, 8)),
       "contradict each other"},
      {"zip64 with a directory of 2^63 bytes",
       changed_end(kEnd + kLocator + kEnd64 - 40, number(uint64_t{1} << 63, 8)),
       "contradict each other"},
  };
}

/// Reads every tensor of a value.
void read_tensors(const TorchFile& opened, const SavedValue& value) {
  if (const auto* tensor = value.get<SavedTensor>()) {
    std::vector<std::byte> bytes(num_elements(tensor->shape, "tensor") *
                                 static_cast<uint64_t>(item_bytes(tensor->dtype)));
    opened.read_block(*tensor, {}, bytes);
  }
  if (const auto* list = value.get<SavedList>()) {
    for (const SavedValue& item : *list) read_tensors(opened, item);
  }
  if (const auto* dict = value.get<SavedDict>()) {
    for (const auto& [key, member] : *dict) read_tensors(opened, member);
  }
}

}  // namespace

HostileSet torch_bin_set() {
  HostileSet set{.kind = "torch_bin",
                 .file_name = "pytorch_model.bin",
                 .least = 60,

                 .seed = zip(items())};
  for (const auto& cases : {accepted_values(), code(), unknown_operations(), broken_stacks(),
                            bombs(), broken_storages(), broken_tensors(), accepted_zips(),
                            broken_entries(), broken_contents(), broken_frames()}) {
    set.cases.insert(set.cases.end(), cases.begin(), cases.end());
  }
  set.read = [](const std::filesystem::path& folder) {
    const auto opened = TorchFile::open(folder / "pytorch_model.bin");
    read_tensors(opened, opened.value());
  };
  return set;
}

}  // namespace cleave::test
