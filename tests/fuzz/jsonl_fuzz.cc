// Random bytes as JSONL: a refusal is Error(kFormat) with the line number; line numbers increase,
// and the joined lines are the text.
#include <cstdint>
#include <string>

#include "cleave/base/error.h"
#include "cleave/text/jsonl.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

/// The text as the reader returns it: without a byte order mark, with line ends of one byte.
std::string plain(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::string out;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out += std::string(line) + '\n';
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return out;
}

void check_lines(const std::string& path, std::string_view text) {
  cleave::LineReader lines(path);
  std::string joined;
  uint64_t number = 0;
  while (const auto line = lines.next()) {
    joined += std::string(*line) + '\n';
    require(lines.line() == ++number);
  }
  require(joined == plain(text));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cleave::fuzz::MemoryFile input({data, size});
  check_lines(input.path(), cleave::fuzz::text_of(data, size));
  cleave::JsonLines values(input.path());
  uint64_t before = 0;
  try {
    while (const auto value = values.next()) {
      require(values.line() > before);
      before = values.line();
      require(!value->dump().empty());
    }
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
    require(std::string(error.what()).find(values.place()) != std::string::npos);
  }
  return 0;
}
