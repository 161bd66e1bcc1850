#include "cleave/text/jsonl.h"

#include <algorithm>
#include <array>
#include <span>

#include "cleave/base/stop.h"
#include "cleave/text/utf8.h"

namespace cleave::inline text {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{64} << 10;
constexpr uint64_t kLongLineBytes = uint64_t{1} << 20;
constexpr std::string_view kBlank = " \t\r";

}  // namespace

LineReader::LineReader(const std::string& path, uint64_t max_bytes)
    : file_(File::open_read(path)), max_bytes_(max_bytes), size_(file_.size()) {}

std::string LineReader::place() const {
  return file_.path() + ':' + std::to_string(line_);  // called for every line, so without a stream
}

std::string LineReader::next_place() const {
  return str(file_.path(), ":", line_ + 1);
}

/// Appends the next block to the unfinished line; false at the end of the file. Blocks grow with
/// the line, so that a long line is moved only a few times. Above kLongLineBytes the maximum is
/// reserved; untouched reserved pages take no memory.
bool LineReader::read_more() {
  if (read_ == size_) return false;
  if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
  buffer_.erase(0, begin_);
  begin_ = 0;
  const size_t kept = buffer_.size();
  const uint64_t wanted = std::min(std::max<uint64_t>(kBlockBytes, kept / 2), size_ - read_);
  if (kept > kLongLineBytes) buffer_.reserve(kept + std::min(size_ - read_, max_bytes_));
  buffer_.resize(kept + wanted);
  file_.read_at(read_, std::as_writable_bytes(std::span(buffer_).subspan(kept)));
  if (read_ == 0) {
    require_utf8_file(file_.path(), buffer_);
    if (buffer_.starts_with(kByteOrderMark)) begin_ = kByteOrderMark.size();
  }
  read_ += wanted;
  return true;
}

std::optional<std::string_view> LineReader::next() {
  size_t seen = 0;  // bytes of the line already searched for its end
  size_t end = buffer_.find('\n', begin_);
  while (end == std::string::npos) {
    seen = buffer_.size() - begin_;
    CLEAVE_CHECK(seen <= max_bytes_, Code::kFormat, next_place(), ": the line has more than ",
                 max_bytes_, " bytes; split it");
    if (!read_more()) break;
    end = buffer_.find('\n', begin_ + seen);
  }
  if (end == std::string::npos && begin_ == buffer_.size()) return std::nullopt;
  const std::string_view rest = std::string_view(buffer_).substr(begin_);
  std::string_view line = rest.substr(0, std::min(end, buffer_.size()) - begin_);
  CLEAVE_CHECK(line.size() <= max_bytes_, Code::kFormat, next_place(), ": the line has ",
               line.size(), " bytes; at most ", max_bytes_, " are read");
  line_ += 1;
  begin_ += line.size() + (end == std::string::npos ? 0 : 1);
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

char first_byte(const std::string& path) {
  constexpr std::string_view kNoContent = " \t\r\n\xEF\xBB\xBF";  // and a byte order mark
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  std::array<char, 4096> block{};
  for (uint64_t at = 0; at < size; at += block.size()) {
    const auto piece = std::span(block).first(std::min<uint64_t>(block.size(), size - at));
    file.read_at(at, std::as_writable_bytes(piece));
    const std::string_view text(piece.data(), piece.size());
    const size_t found = text.find_first_not_of(kNoContent);
    if (found != std::string_view::npos) return text[found];
  }
  return 0;
}

JsonLines::JsonLines(const std::string& path, std::string_view expected)
    : lines_(path), expected_(expected) {}

std::optional<Json> JsonLines::next() {
  while (const std::optional<std::string_view> line = lines_.next()) {
    if (line->find_first_not_of(kBlank) == std::string_view::npos) continue;
    return parsed_as(expected_, [&] { return Json::parse(*line, lines_.place()); });
  }
  return std::nullopt;
}

}  // namespace cleave::inline text
