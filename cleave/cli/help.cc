#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "cleave/cli/program.h"

namespace cleave::cli {
namespace {

struct Row {
  std::string name;
  std::string text;
};

// COLUMNS, or the terminal's width, or 80; at least 40.
size_t page_width() {
  size_t width = 80;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) width = size.ws_col;
  const char* text = getenv("COLUMNS");  // NOLINT(concurrency-mt-unsafe): no other thread exists
  size_t columns = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), columns);
  if (columns > 0) width = columns;
  return std::max<size_t>(width, 40);
}

// Names that need more have a line of their own.
size_t max_name_column() {
  return std::min<size_t>(34, page_width() / 2);
}

// `text` wrapped at spaces; lines after the first begin at `column`.
std::string wrapped(const std::string& text, size_t column) {
  const size_t width = page_width() - column;
  std::istringstream words(text);
  std::string result;
  std::string word;
  for (size_t used = 0; words >> word;) {
    if (used > 0 && used + 1 + word.size() > width) {
      result += '\n' + std::string(column, ' ');
      used = 0;
    }
    result += (used > 0 ? " " : "") + word;
    used += (used > 0 ? 1 : 0) + word.size();
  }
  return result;
}

size_t name_column(const std::vector<Row>& rows) {
  size_t widest = 0;
  for (const Row& row : rows) {
    if (row.name.size() + 4 <= max_name_column()) widest = std::max(widest, row.name.size());
  }
  return widest + 4;
}

// A name with many choices, broken after a '|' if it is longer than a line.
std::string folded(const std::string& name) {
  constexpr size_t kIndent = 6;
  const size_t width = page_width();
  std::string result;
  size_t used = 2;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('|', at), name.size() - 1) + 1;
    if (at > 0 && used + end - at > width) {
      result += '\n' + std::string(kIndent, ' ');
      used = kIndent;
    }
    result += name.substr(at, end - at);
    used += end - at;
    at = end;
  }
  return result;
}

std::string line(const Row& row, size_t column) {
  std::string text = "  " + folded(row.name);
  if (text.size() + 2 > column) {
    text += '\n' + std::string(column, ' ');
  } else {
    text += std::string(column - text.size(), ' ');
  }
  return text + wrapped(row.text, column) + '\n';
}

Row row_of(const Flags::Flag& flag) {
  const option::Row& text = flag.row;
  const std::string dashes = text.name.size() == 1 ? "-" : "--";
  std::string shown = (flag.is_shown_negative ? "--no-" : dashes) + text.name;
  if (flag.takes_word) shown = "[" + shown + "]";
  if (!text.value.empty()) shown += ' ' + text.value;
  const bool has_default = !text.default_text.empty();
  return {std::move(shown), text.help + (has_default ? " [" + text.default_text + "]" : "")};
}

}  // namespace

std::string program_help(const std::vector<Command>& commands) {
  std::vector<Row> rows;
  rows.reserve(commands.size());
  for (const Command& command : commands) rows.push_back({command.name, command.summary});
  const std::vector<Row> flags = {
      {"-h, --help",
       "print this text; cleave COMMAND --help, or cleave help COMMAND, lists the command's flags"},
      {"--version", "print the version"}};
  std::string text = wrapped("Trains and runs transformers on parallel ranks.", 0) +
                     "\n\nusage: cleave COMMAND [flags]\n\ncommands:\n";
  for (const Row& row : rows) text += line(row, name_column(rows));
  text += "\nflags:\n";
  for (const Row& row : flags) text += line(row, name_column(flags));
  return text;
}

std::string command_help(const Command& command, const Flags& flags) {
  std::vector<std::pair<std::string, Row>> rows;
  for (const Positional& word : flags.positionals()) {
    rows.emplace_back("", Row{word.value, word.help});
  }
  for (const Flags::Flag& flag : flags.all()) rows.emplace_back(flag.group, row_of(flag));
  rows.emplace_back("other", Row{"-h, --help", "print this text"});
  std::vector<Row> plain;
  plain.reserve(rows.size());
  for (const auto& [group, row] : rows) plain.push_back(row);
  const size_t column = name_column(plain);

  std::string text = wrapped("cleave " + command.name + ": " + command.summary, 0) +
                     "\n\nusage: " + wrapped("cleave " + command.name + ' ' + command.usage, 7) +
                     '\n';
  std::string title = "none yet";
  for (const auto& [group, row] : rows) {
    if (group != title) text += group.empty() ? "\n" : '\n' + group + ":\n";
    title = group;
    text += line(row, column);
  }
  return text;
}

}  // namespace cleave::cli
