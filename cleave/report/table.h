#pragma once
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace cleave::inline report {

/// A cell of a table.
struct Cell {
  std::string text{};
  double share = NAN;  ///< 0 to 1: drawn as a bar behind the text; NaN: no bar
};

/// A row of a table.
using Row = std::vector<Cell>;

/// Rows. The first row and the first column are headers.
using Table = std::vector<Row>;

/// `text` with HTML special characters escaped and malformed UTF-8 replaced.
std::string escaped_html(std::string_view text);

/// The table as HTML; its texts are escaped.
std::string table_html(const Table& table);

/// A section with a heading, HTML that is used as it is, and a remark below it.
std::string section(std::string_view title, const std::string& html,
                    const std::string& remark = "");

}  // namespace cleave::inline report
