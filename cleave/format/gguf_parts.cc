#include "cleave/format/gguf_parts.h"

#include <string>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/file/model_path.h"

namespace cleave::inline format {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSplitNumber = "split.no";
constexpr std::string_view kSplitCount = "split.count";

/// At least five digits, as gguf-split writes them.
std::string five_digits(size_t number) {
  const std::string digits = str(number);
  return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
}

/// The end of a part's name; `index` is counted from 0.
std::string end_of_name(size_t index, size_t count) {
  return str("-", five_digits(index + 1), "-of-", five_digits(count), ".gguf");
}

/// The name without the end that a part has; "NAME" if it has another end.
std::string stem_of(const std::string& name, size_t index, size_t count) {
  const std::string end = end_of_name(index, count);
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : "NAME";
}

}  // namespace

std::vector<fs::path> gguf_part_paths(const GgufMetadata& metadata, const fs::path& path) {
  const int64_t parts = metadata.int_or(kSplitCount, 1);
  if (parts < 0 || parts > kMaxGgufParts) {
    metadata.fail(kSplitCount, str("it is ", parts, "; expected at most ", kMaxGgufParts));
  }
  if (parts <= 1) return {path};
  const auto count = static_cast<size_t>(parts);
  const int64_t number = metadata.int_at(kSplitNumber);
  if (number < 0 || number >= parts) {
    metadata.fail(kSplitNumber, str("it is ", number, "; expected 0 to ", parts - 1));
  }
  const auto index = static_cast<size_t>(number);
  const std::string name = path.filename().string();
  const std::string stem = stem_of(name, index, count);
  CLEAVE_CHECK(index == 0, Code::kFormat, path.string(), " is part ", index + 1, " of ", count,
               " of a model; give the first one, ", stem, end_of_name(0, count));
  CLEAVE_CHECK(name.ends_with(end_of_name(0, count)), Code::kFormat, path.string(),
               " is the first of ", count, " parts of a model, and its name does not end in ",
               end_of_name(0, count), "; give it and the other parts the names that they had");
  std::vector<fs::path> paths = {path};
  for (size_t i = 1; i < count; ++i) {
    paths.push_back(path.parent_path() / (stem + end_of_name(i, count)));
    std::error_code ignored;  // a file that cannot be accessed counts as missing
    if (fs::exists(paths.back(), ignored)) continue;
    const std::string advice = download_advice(path.parent_path());
    throw Error(Code::kIo, str(paths.back().string(), " is not there; it is part ", i + 1, " of ",
                               count, " of the model in ", name,
                               advice.empty() ? "; copy it to the others" : advice));
  }
  return paths;
}

void check_gguf_part(const GgufMetadata& metadata, size_t index, size_t count) {
  const auto require = [&](std::string_view key, size_t expected) {
    const int64_t value = metadata.int_at(key);
    if (value == static_cast<int64_t>(expected)) return;
    metadata.fail(
        key, str("it is ", value, "; expected ", expected, ", as its name and the first part say"));
  };
  require(kSplitCount, count);
  require(kSplitNumber, index);
}

}  // namespace cleave::inline format
