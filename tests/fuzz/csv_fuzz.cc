// Random bytes as CSV: a refusal is Error(kFormat); all records of an accepted file have the same
// width, and written with every field in quotes it reads the same.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/text/csv.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

using Records = std::vector<std::vector<std::string>>;

Records records_of(std::string_view text) {
  cleave::CsvReader reader(text, "input");
  Records out{reader.header()};
  while (auto record = reader.next()) out.push_back(std::move(*record));
  return out;
}

std::string quoted(const Records& records) {
  std::string text;
  for (const auto& record : records) {
    for (size_t i = 0; i < record.size(); ++i) {
      text += i == 0 ? "\"" : ",\"";
      for (const char c : record[i]) text += c == '"' ? std::string("\"\"") : std::string(1, c);
      text += '"';
    }
    text += '\n';
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = cleave::fuzz::text_of(data, size);
  Records records;
  try {
    records = records_of(text);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
    return 0;
  }
  for (const auto& record : records) require(record.size() == records.front().size());
  require(records_of(quoted(records)) == records);
  return 0;
}
