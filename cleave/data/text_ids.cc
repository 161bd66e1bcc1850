#include "cleave/data/text_ids.h"

#include <algorithm>
#include <span>
#include <vector>

#include <ATen/Parallel.h>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "cleave/text/utf8.h"

namespace cleave::inline data {
namespace {

/// Text on each side of a place whose ids are compared: far more than a word and its neighbours.
constexpr size_t kWindow = 4096;
/// Places to try before more text is read: with some tokenizers no place is good.
constexpr int kMostTries = 8;

/// Refuses text that is not UTF-8. Training on the bytes of a picture or an archive would otherwise
/// go unnoticed. `begin`: of the text in the file.
void require_text(const std::string& path, std::string_view text, uint64_t begin) {
  const size_t at = std::min(text.find('\0'), first_bad_utf8(text));
  if (at >= text.size()) return;
  const std::string_view mark = begin == 0 ? text.substr(0, 4) : "";
  require_utf8_file(path, mark);
  CLEAVE_CHECK(mark != "PAR1", Code::kFormat, path,
               " is a Parquet file; write its rows into JSONL, for instance in Python: "
               "pandas.read_parquet('",
               path, "').to_json('rows.jsonl', orient='records', lines=True)");
  constexpr std::string_view kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(text[at]);
  throw Error(Code::kFormat,
              str(path, ": byte ", begin + at, " is 0x", kDigits[byte >> 4], kDigits[byte & 15],
                  ", which is not UTF-8 text; convert the file, "
                  "or remove it from the data"));
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

std::vector<int64_t> ids_of(const Tokenizer& tokenizer, std::string_view text) {
  return tokenizer.encode(text, {.add_special = false});
}

bool begins_with(const std::vector<int64_t>& ids, const std::vector<int64_t>& first) {
  return ids.size() >= first.size() && std::equal(first.begin(), first.end(), ids.begin());
}

/// Whether the ids of the text before `at` do not depend on the text after it.
bool divides(const Tokenizer& tokenizer, std::string_view text, size_t at) {
  const std::string_view both = text.substr(at - kWindow, 2 * kWindow);
  return begins_with(ids_of(tokenizer, both), ids_of(tokenizer, both.substr(0, kWindow)));
}

/// A place from `from` on at which the text can be divided: before a single blank, or after a line
/// end. npos if none is found. `from` is at least kWindow.
size_t find_place(const Tokenizer& tokenizer, std::string_view text, size_t from) {
  int tries = 0;
  for (size_t at = text.find_first_of(" \n", from);
       at != std::string_view::npos && at + 1 + kWindow <= text.size() && tries < kMostTries;
       at = text.find_first_of(" \n", at + 1)) {
    const size_t begin = text.substr(at - 1, 2) == "\r\n" ? at - 1 : at;  // one line end
    if (begin < kWindow || is_blank(text[begin - 1]) || is_blank(text[at + 1])) continue;
    if (divides(tokenizer, text, begin)) return begin;
    if (text[at] == '\n' && divides(tokenizer, text, at + 1)) return at + 1;
    ++tries;
  }
  return std::string_view::npos;
}

/// The text of a file that is not tokenized yet, and the end of the text before it.
class TextReader {
 public:
  TextReader(const std::string& path, const Tokenizer& tokenizer, const TakeIds& take)
      : path_(path), tokenizer_(tokenizer), take_(take) {}

  [[nodiscard]] const std::string& text() const { return text_; }
  /// Drops a byte order mark at the beginning of the file. Returns its bytes.
  uint64_t skip_mark(const File& file) {
    std::string mark(std::min<uint64_t>(kByteOrderMark.size(), file.size()), '\0');
    file.read_at(0, std::as_writable_bytes(std::span(mark)));
    if (mark == kByteOrderMark) begin_ = kByteOrderMark.size();
    return begin_;
  }
  /// Appends bytes of the file.
  void read(const File& file, uint64_t count) {
    const size_t held = text_.size();
    text_.resize(held + count);
    file.read_at(begin_ + held, std::as_writable_bytes(std::span(text_).subspan(held)));
  }
  /// Removes the first `count` bytes, whose ids are passed on with those of the next pieces.
  void take_first(size_t count) {
    const std::string_view piece = std::string_view(text_).substr(0, count);
    try {
      require_text(path_, piece, begin_);
    } catch (const Error&) {
      flush();
      throw;
    }
    begin_ += count;
    pieces_.push_back({.before = before_, .text = std::string(piece), .end = begin_});
    before_ = piece.substr(count - std::min(count, kWindow));
    text_.erase(0, count);
    const auto most = std::min<int64_t>(at::get_num_threads(), kMostPieces);
    if (std::ssize(pieces_) >= most) flush();
  }
  /// Encodes the pieces that were taken, on all threads, and passes on their ids.
  void flush() {
    std::vector<std::vector<int64_t>> ids(pieces_.size()), known(pieces_.size());
    at::parallel_for(0, std::ssize(pieces_), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const Piece& piece = pieces_[i];
        if (!piece.before.empty()) known[i] = ids_of(tokenizer_, piece.before);
        ids[i] = ids_of(tokenizer_, piece.before + piece.text);
      }
    });
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (!begins_with(ids[i], known[i])) {
        CLEAVE_BUG(path_, ": the ids before byte ", pieces_[i].end - pieces_[i].text.size(),
                   " depend on the text after it");
      }
      take_(std::span<const int64_t>(ids[i]).subspan(known[i].size()), pieces_[i].end);
    }
    pieces_.clear();
  }

 private:
  static constexpr int64_t kMostPieces = 8;  // at a time: each takes up to nine times its bytes
  struct Piece {
    std::string before, text;
    uint64_t end = 0;  // in the file
  };

  const std::string& path_;
  const Tokenizer& tokenizer_;
  const TakeIds& take_;
  std::string text_, before_;
  std::vector<Piece> pieces_;  // not encoded yet
  uint64_t begin_ = 0;         // of text_ in the file
};

}  // namespace

void for_text_ids(const std::string& path, const Tokenizer& tokenizer, size_t piece_bytes,
                  const TakeIds& take) {
  const File file = File::open_read(path);
  const uint64_t size = file.size();
  const size_t least = std::max(piece_bytes, kWindow);
  TextReader reader(path, tokenizer, take);
  const std::string& text = reader.text();
  size_t from = least;  // the places before it were tried
  for (uint64_t left = size - reader.skip_mark(file); left > 0;) {
    const uint64_t count = std::min<uint64_t>(least, left);
    reader.read(file, count);
    left -= count;
    while (left > 0 && text.size() >= from + least) {
      const size_t place = find_place(tokenizer, text, from);
      if (place == std::string::npos) {
        from = text.size() - kWindow;  // the text after them was too short to tell
        break;
      }
      reader.take_first(place);
      from = least;
    }
  }
  if (!text.empty()) reader.take_first(text.size());
  reader.flush();
}

}  // namespace cleave::inline data
