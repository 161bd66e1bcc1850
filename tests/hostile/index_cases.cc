// An index of a model's files is refused, before any file is opened, unless every name in it is a
// name in the folder.
#include <fstream>
#include <string>
#include <sys/stat.h>
#include <vector>

#include "cleave/format/safetensors.h"
#include "tests/hostile/hostile.h"

namespace cleave::test {
namespace {

namespace fs = std::filesystem;

std::string map(const std::string& weights) {
  return R"({"metadata":{"total_size":2},"weight_map":)" + weights + "}";
}

std::vector<HostileCase> paths() {
  std::vector<HostileCase> cases;
  const auto add = [&](const std::string& what, const std::string& name) {
    cases.push_back({what, map(R"({"a":")" + name + R"(","b":"two.safetensors"})"), "not a path"});
  };
  add("the folder above", "../outside.safetensors");
  add("two folders above", "../../outside.safetensors");
  add("an absolute path", "/etc/passwd");
  add("in and out again", "a/../../b.safetensors");
  add("in and out to the same place", "x/../one.safetensors");
  add("this folder", "./one.safetensors");
  add("a folder below", "below/one.safetensors");
  add("two slashes", "//one.safetensors");
  add("a dot", ".");
  add("two dots", "..");
  add("a hidden file", ".one.safetensors");
  add("no name", "");
  add("a backslash", "..\\\\outside.safetensors");
  add("an escaped slash", "..\\/outside.safetensors");
  add("a slash as \\u002f", "..\\u002foutside.safetensors");
  add("dots as \\u002e", "\\u002e\\u002e/outside.safetensors");
  add("a NUL", "one.safetensors\\u0000");
  add("a NUL before an ending", "/etc/passwd\\u0000.safetensors");
  add("a line end", "one\\n.safetensors");
  add("an escape character", "\\u001b[2Jone.safetensors");
  add("DEL", "one\x7f.safetensors");
  add("256 bytes", std::string(256, 'x'));
  add("300 bytes", std::string(300, 'x'));
  add("100,000 bytes", std::string(100'000, 'x'));
  add("procfs", "/proc/self/environ");
  return cases;
}

/// Allowed names that are not files of this folder.
std::vector<HostileCase> places() {
  const auto at = [](const std::string& name) {
    return map(R"({"a":")" + name + R"(","b":"two.safetensors"})");
  };
  return {
      {"a link to a file outside", at("link.safetensors"), "symbolic link"},
      {"a link to a file inside", at("near.safetensors"), "symbolic link"},
      {"a link to itself", at("loop.safetensors"), "symbolic link"},
      {"a pipe", at("pipe.safetensors"), "a device, pipe or socket"},
      {"a link to a device", at("zero.safetensors"), "symbolic link"},
      {"a folder", at("folder.safetensors"), "is a folder"},
      {"a drive", at("C:one.safetensors"), "No such file"},
      {"a per cent sign", at("%2e%2e%2foutside.safetensors"), "No such file"},
      {"a variable", at("$HOME"), "No such file"},
      {"a home folder", at("~root"), "No such file"},
      {"a file that is not there", at("none.safetensors"), "No such file"},
      {"a file without tensors", at("empty.safetensors"),
       "is not in the file that the index names"},
      {"a file that is not safetensors", at("text.safetensors"), "not a safetensors file"},
      {"255 bytes", at(std::string(255, 'x')), "No such file"},
  };
}

std::vector<HostileCase> texts() {
  const std::string good = R"({"a":"one.safetensors","b":"two.safetensors"})";
  return {
      {"valid", map(good), ""},
      {"without metadata", R"({"weight_map":)" + good + "}", ""},
      {"metadata that is a list", R"({"metadata":[1,"x"],"weight_map":)" + good + "}", ""},
      {"no bytes", "", "found the end"},
      {"no map", R"({"metadata":{}})", "\"weight_map\" is missing"},
      {"an empty map", map("{}"), "expected an object"},
      {"a map that is a list", map(R"(["one.safetensors"])"), "expected an object"},
      {"a map that is null", map("null"), "expected an object"},
      {"a number as a file", map(R"({"a":1})"), "\"weight_map.a\" is 1"},
      {"a list as a file", map(R"({"a":["one.safetensors"]})"), "expected a string"},
      {"a tensor twice", map(R"({"a":"one.safetensors","a":"two.safetensors"})"), "occurs twice"},
      {"a tensor twice, escaped", map(R"({"a":"one.safetensors","\u0061":"two.safetensors"})"),
       "occurs twice"},
      {"the map twice", R"({"weight_map":{},"weight_map":)" + good + "}", "occurs twice"},
      {"a tensor in the other file", map(R"({"a":"two.safetensors","b":"one.safetensors"})"),
       "it is in one.safetensors"},
      {"a tensor in no file",
       map(R"({"a":"one.safetensors","b":"two.safetensors","c":"two.safetensors"})"),
       "tensor 'c' is not in the file"},
      {"a missing tensor", map(R"({"a":"one.safetensors","c":"two.safetensors"})"), "tensor 'c'"},
      {"bad UTF-8", map("{\"a\":\"\xC3\x28\"}"), "not valid UTF-8"},
      {"deep nesting", map(repeated("[", 100'000)), "nested deeper"},
      {"a byte order mark", "\xEF\xBB\xBF" + map(good), "byte order mark"},
      {"too many values", "", "more than 524288 values",
       [] { return map("{\"a\":[" + repeated("0,", 1'100'000) + "0]}"); }},
      {"65 MB", "", "expected at most 67108864", [] { return map(std::string(65 << 20, ' ')); }},
  };
}

void write_safetensors(const fs::path& path, const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(header.size());
  std::ofstream(path, std::ios::binary) << bytes << header << std::string(data_bytes, 'd');
}

std::string one_tensor(const std::string& name) {
  return R"({")" + name + R"(":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
}

/// Writes the files next to the index.
void furnish(const fs::path& folder) {
  if (fs::exists(folder / "one.safetensors")) return;
  write_safetensors(folder / "one.safetensors", one_tensor("a"), 1);
  write_safetensors(folder / "two.safetensors", one_tensor("b"), 1);
  write_safetensors(folder / "empty.safetensors", "{}", 0);
  std::ofstream(folder / "text.safetensors") << "these are words and no tensors at all\n";
  write_safetensors(folder.parent_path() / "outside.safetensors", one_tensor("a"), 1);
  fs::create_symlink(folder.parent_path() / "outside.safetensors", folder / "link.safetensors");
  fs::create_symlink("one.safetensors", folder / "near.safetensors");
  fs::create_symlink("loop.safetensors", folder / "loop.safetensors");
  fs::create_symlink("/dev/zero", folder / "zero.safetensors");
  fs::create_directory(folder / "folder.safetensors");
  (void)::mkfifo((folder / "pipe.safetensors").c_str(), 0600);
}

}  // namespace

HostileSet index_set() {
  HostileSet set{.kind = "index_json",
                 .file_name = "model.safetensors.index.json",
                 .least = 50,
                 .seed = texts().front().bytes,
                 .cases = paths()};
  for (const auto& cases : {places(), texts()}) {
    set.cases.insert(set.cases.end(), cases.begin(), cases.end());
  }
  set.read = [](const fs::path& folder) {
    furnish(folder);
    (void)Safetensors::open(folder);
  };
  return set;
}

}  // namespace cleave::test
