#include "cleave/data/tokenized_rows.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <utility>

#include <ATen/Parallel.h>

#include "cleave/base/error.h"
#include "cleave/base/stop.h"
#include "cleave/data/reading_progress.h"
#include "cleave/data/token_cache.h"
#include "cleave/data/tokens.h"

namespace cleave::inline data {
namespace {

constexpr uint64_t kCacheVersionOfRows = 1;  // of the rules that turn rows into sequences

/// A row of a file, and what became of it.
struct Row {
  std::optional<Json> json;
  std::string place;
  uint64_t line = 0;
  RowSequences sequences{};
  std::exception_ptr error{};
};

/// Rows of a file that are tokenized together, on all threads.
class RowBatch {
 public:
  explicit RowBatch(const RowSource& source) : read_(source.read) {}

  /// Reads rows until they have enough bytes. False at the end of the file.
  bool read(JsonLines& file) {
    rows_.clear();
    const uint64_t begin = file.bytes_read();
    try {
      while (file.bytes_read() - begin < kBatchBytes) {
        std::optional<Json> row = file.next();
        if (!row) break;
        rows_.push_back({.json = std::move(row), .place = file.place(), .line = file.line()});
      }
    } catch (const Error&) {  // of the rows before it, an error comes first
      rows_.push_back({.json = {}, .place = {}, .error = std::current_exception()});
    }
    return !rows_.empty();
  }
  /// Passes on the rows in order; throws the error of the first row that has one.
  void take(const std::function<void(Row&)>& visit) {
    tokenize(rows_.front(), read_);  // decides which kind of rows the others must be
    at::parallel_for(1, std::ssize(rows_), 1, [&](int64_t begin, int64_t end) {
      auto own = read_;
      for (int64_t i = begin; i < end; ++i) tokenize(rows_[static_cast<size_t>(i)], own);
    });
    for (Row& row : rows_) {
      if (row.error) std::rethrow_exception(row.error);
      visit(row);
    }
  }

 private:
  static constexpr uint64_t kBatchBytes = uint64_t{256} << 10;
  using Read = std::function<RowSequences(const Json& row, const std::string& place)>;

  static void tokenize(Row& row, Read& read) {
    if (!row.json) return;
    try {
      row.sequences = read(*row.json, row.place);
    } catch (...) {
      row.error = std::current_exception();
    }
  }

  Read read_;
  std::vector<Row> rows_;
};

/// Tokenizes the rows of all files.
void tokenize_rows(const DatasetOptions& options, const RowSource& source,
                   ReadingProgress& progress,
                   const std::function<void(Row& row, size_t file)>& visit) {
  RowBatch batch(source);
  for (size_t file = 0; file < options.files.size(); ++file) {
    JsonLines lines = source.open(options.files[file]);
    while (batch.read(lines)) {
      batch.take([&](Row& row) { visit(row, file); });
      progress.note(lines.bytes_read());
    }
    progress.end_file();
  }
}

/// The numbers that a cache holds of rows. Ids: id * 2 + (whether the token is trained). Lengths,
/// for each row: index of its file, its line, tokens of each sequence.
class StoredRows {
 public:
  StoredRows(const DatasetOptions& options, int64_t sequences)
      : files_(options.files), sequences_(sequences) {}

  static void put(const Row& row, size_t file, const TakeDocuments& take) {
    std::vector<int64_t> lengths{static_cast<int64_t>(file), static_cast<int64_t>(row.line)};
    for (const TokenizedChat& sequence : row.sequences) {
      std::vector<int64_t> ids(sequence.ids);
      for (size_t i = 0; i < ids.size(); ++i)
        ids[i] = 2 * ids[i] + (sequence.is_trained[i] ? 1 : 0);
      take.ids(ids);
      lengths.push_back(std::ssize(ids));
    }
    take.lengths(lengths);
  }

  void visit(const TokenizedFile& stored,
             const std::function<void(RowSequences, const std::string& place)>& visit) {
    const int64_t per_row = 2 + sequences_;
    constexpr int64_t kRowsAtATime = 256;
    int64_t first_id = 0;
    for (int64_t at = 0; at < stored.lengths.size();) {
      if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
      std::vector<int64_t> lengths(
          static_cast<size_t>(std::min(kRowsAtATime * per_row, stored.lengths.size() - at)));
      stored.lengths.copy(at, lengths);
      at += std::ssize(lengths);
      first_id += visit_some(stored.ids, first_id, lengths, visit);
    }
  }

 private:
  /// Passes on the rows with these lengths. Returns how many ids they have.
  int64_t visit_some(const Tokens& ids, int64_t first_id, std::span<const int64_t> lengths,
                     const std::function<void(RowSequences, const std::string& place)>& visit) {
    const auto per_row = static_cast<size_t>(2 + sequences_);
    int64_t count = 0;
    for (size_t at = 0; at < lengths.size(); ++at) count += at % per_row < 2 ? 0 : lengths[at];
    std::vector<int64_t> stored(static_cast<size_t>(count));
    ids.copy(first_id, stored);
    std::span<const int64_t> rest = stored;
    for (; !lengths.empty(); lengths = lengths.subspan(per_row)) {
      RowSequences row;
      for (const int64_t length : lengths.subspan(2, per_row - 2)) {
        row.push_back(sequence(rest.first(static_cast<size_t>(length))));
        rest = rest.subspan(static_cast<size_t>(length));
      }
      visit(std::move(row), str(files_[static_cast<size_t>(lengths[0])], ':', lengths[1]));
    }
    return count;
  }
  static TokenizedChat sequence(std::span<const int64_t> stored) {
    TokenizedChat out;
    for (const int64_t number : stored) {
      out.ids.push_back(number / 2);
      out.is_trained.push_back(number % 2 == 1);
    }
    return out;
  }

  const std::vector<std::string>& files_;
  int64_t sequences_;
};

}  // namespace

void for_each_row(const DatasetOptions& options, const RowSource& source,
                  const std::function<void(RowSequences, const std::string& place)>& visit) {
  const Tokenizer& tokenizer = *options.tokenizer;
  if (!options.cache_folder.empty()) {
    TokenSource stored{.files = options.files,
                       .settings = {kCacheVersionOfRows, static_cast<uint64_t>(source.sequences),
                                    tokenizer.fingerprint(),
                                    static_cast<uint64_t>(tokenizer.special().eos.value_or(-1))},
                       .vocab_size = 2 * tokenizer.vocab_size(),
                       .tokenize = [&](ReadingProgress& progress, const TakeDocuments& take) {
                         tokenize_rows(options, source, progress, [&](Row& row, size_t file) {
                           StoredRows::put(row, file, take);
                         });
                       }};
    stored.settings.insert(stored.settings.end(), source.settings.begin(), source.settings.end());
    const auto found = cached_tokens(stored, options.cache_folder);
    if (found) return StoredRows(options, source.sequences).visit(*found, visit);
  }
  ReadingProgress progress = common_progress(options.files, kTokenized, options.cache_folder);
  tokenize_rows(options, source, progress,
                [&](Row& row, size_t /*file*/) { visit(std::move(row.sequences), row.place); });
}

}  // namespace cleave::inline data
