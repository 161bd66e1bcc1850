#include "cleave/text/csv.h"

#include <algorithm>
#include <memory>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/text/utf8.h"

namespace cleave::inline text {
namespace {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr size_t kLongFieldBytes = size_t{8} << 20;
constexpr int kEndOfFile = -1;

}  // namespace

CsvReader::CsvReader(const std::string& path, const CsvLimits& limits)
    : name_(path), limits_(limits), buffer_(kBlockBytes) {
  const auto file = std::make_shared<File>(File::open_read(path));
  source_ = [file, offset = uint64_t{0}, size = file->size()](std::span<char> out) mutable {
    if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
    const auto count = static_cast<size_t>(std::min<uint64_t>(out.size(), size - offset));
    file->read_at(offset, std::as_writable_bytes(out.first(count)));
    offset += count;
    return count;
  };
  peek();
  require_utf8_file(path, {buffer_.data(), end_});
  read_header();
}

CsvReader::CsvReader(std::string_view text, std::string name, const CsvLimits& limits)
    : name_(std::move(name)), limits_(limits), buffer_(kBlockBytes) {
  source_ = [text](std::span<char> out) mutable {
    const size_t count = text.copy(out.data(), out.size());
    text.remove_prefix(count);
    return count;
  };
  read_header();
}

void CsvReader::fail(const Position& spot, std::string_view message) const {
  throw Error(Code::kFormat, str(name_, ':', spot.line, ':', spot.column, ": ", message));
}

std::string CsvReader::place() const {
  return str(name_, ':', begin_.line);
}

int CsvReader::peek() {
  if (at_ == end_) {
    at_ = 0;
    end_ = source_(buffer_);
    if (end_ == 0) return kEndOfFile;
  }
  return static_cast<unsigned char>(buffer_[at_]);
}

int CsvReader::take() {
  const int byte = peek();
  if (byte == kEndOfFile) return kEndOfFile;
  ++at_;
  ++here_.column;
  if (byte == '\n') here_ = {.line = here_.line + 1, .column = 1};
  count_bytes(1);
  return byte;
}

/// Counts bytes of the record, and refuses a record beyond the limit.
void CsvReader::count_bytes(size_t count) {
  record_bytes_ += count;
  if (record_bytes_ > limits_.max_record_bytes) {
    fail(begin_, str("the record has more than ", limits_.max_record_bytes,
                     " bytes; is a closing quote missing?"));
  }
}

/// Consumes LF or CR LF if one follows; also true at the end of the file.
bool CsvReader::take_line_end() {
  const Position spot = here_;
  if (peek() == '\r') {
    take();
    if (peek() != '\n')
      fail(spot, "a carriage return without a line feed; put the field in quotes");
  }
  if (peek() == '\n')
    take();
  else if (peek() != kEndOfFile)
    return false;
  return true;
}

/// Moves the bytes of the buffer up to `end` to `out`. A long field reserves the maximum once:
/// repeated growth would hold its bytes twice, while untouched reserved pages take no memory.
void CsvReader::take_until(const char* end, std::string& out) {
  const std::string_view run(buffer_.data() + at_, static_cast<size_t>(end - buffer_.data()) - at_);
  count_bytes(run.size());
  if (out.size() + run.size() > kLongFieldBytes) out.reserve(limits_.max_record_bytes);
  out += run;
  at_ += run.size();
  const auto lines = static_cast<uint64_t>(std::ranges::count(run, '\n'));
  if (lines > 0) here_ = {.line = here_.line + lines, .column = 1};
  here_.column += lines > 0 ? run.size() - run.rfind('\n') - 1 : run.size();
}

void CsvReader::quoted(const Position& begin, std::string& out) {
  take();
  while (true) {
    if (peek() == kEndOfFile) fail(begin, "the quote that opens here is never closed");
    take_until(std::find(buffer_.data() + at_, buffer_.data() + end_, '"'), out);
    if (at_ == end_) continue;
    take();
    if (peek() != '"') break;
    take();
    out += '"';
  }
  const int after = peek();
  if (after != ',' && after != '\n' && after != '\r' && after != kEndOfFile) {
    fail(here_,
         "expected a comma or the end of the line after a closing quote; a quote inside a "
         "field is written twice");
  }
}

void CsvReader::plain(std::string& out) {
  const auto ends = [](char byte) {
    return byte == ',' || byte == '\n' || byte == '\r' || byte == '"';
  };
  while (peek() != kEndOfFile && !ends(buffer_[at_])) {
    take_until(std::find_if(buffer_.data() + at_, buffer_.data() + end_, ends), out);
  }
  if (peek() == '"') {
    fail(here_,
         "a quote inside a field without quotes; put the field in quotes and write the "
         "quote twice");
  }
}

std::string CsvReader::field() {
  const Position begin = here_;
  std::string out;
  peek() == '"' ? quoted(begin, out) : plain(out);
  const size_t bad = first_bad_utf8(out);
  if (bad < out.size()) {
    fail(begin, str("byte ", bad + 1, " of the field that begins here is not UTF-8"));
  }
  return out;
}

std::optional<std::vector<std::string>> CsvReader::record() {
  do {
    begin_ = here_;
    record_bytes_ = 0;
    if (peek() == kEndOfFile) return std::nullopt;
  } while (take_line_end());
  std::vector<std::string> fields;
  while (true) {
    if (fields.size() == limits_.max_fields) {
      fail(here_, str("the record has more than ", limits_.max_fields, " fields"));
    }
    fields.push_back(field());
    if (take_line_end()) return fields;
    take();  // the comma
  }
}

void CsvReader::read_header() {
  peek();
  if (std::string_view(buffer_.data(), end_).starts_with(kByteOrderMark)) {
    at_ += kByteOrderMark.size();
  }
  auto first = record();
  if (!first) fail(here_, "the file is empty; expected a header with the names of the columns");
  header_ = std::move(*first);
}

std::optional<std::vector<std::string>> CsvReader::next() {
  auto fields = record();
  if (fields && fields->size() != header_.size()) {
    fail(begin_, str("the record has ", counted(fields->size(), "field"), "; the header has ",
                     header_.size()));
  }
  return fields;
}

size_t CsvReader::column(std::span<const std::string_view> names) const {
  for (const std::string_view name : names) {
    const auto found = std::find(header_.begin(), header_.end(), name);
    if (found != header_.end()) return static_cast<size_t>(found - header_.begin());
  }
  const auto listed = [](const auto& list) {
    std::string text;
    for (const auto& name : list) text += str(text.empty() ? "" : ", ", '\'', name, '\'');
    return text;
  };
  const bool has_other_commas =
      header_.size() == 1 && header_.front().find_first_of(";\t|") != std::string::npos;
  fail({}, str("the header is ", listed(header_), "; expected a column named one of ",
               listed(names), has_other_commas ? "; commas separate the columns" : ""));
}

}  // namespace cleave::inline text
