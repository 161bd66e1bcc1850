#include "cleave/report/table.h"

#include <algorithm>

#include "cleave/base/str.h"
#include "cleave/text/utf8.h"

namespace cleave::inline report {

std::string escaped_html(std::string_view text) {
  std::string result;
  for (const char c : replace_bad_utf8(text)) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string table_html(const Table& table) {
  std::string html = "<div class=\"wide\"><table>";
  for (size_t row = 0; row < table.size(); ++row) {
    html += "<tr>";
    for (size_t column = 0; column < table[row].size(); ++column) {
      const Cell& cell = table[row][column];
      const bool is_head = row == 0 || column == 0;
      html += !is_head ? "<td" : row == 0 ? "<th scope=\"col\"" : "<th scope=\"row\"";
      if (std::isfinite(cell.share)) {
        const double share = std::clamp(cell.share, 0.0, 1.0);
        html += str(" class=\"bar\" style=\"--share:", std::round(share * 1000) / 10, "%\"");
      }
      html += '>' + escaped_html(cell.text) + (is_head ? "</th>" : "</td>");
    }
    html += "</tr>";
  }
  return html + "</table></div>";
}

std::string section(std::string_view title, const std::string& html, const std::string& remark) {
  return "<section><h2>" + escaped_html(title) + "</h2>" + html +
         (remark.empty() ? "" : "<p class=\"remark\">" + escaped_html(remark) + "</p>") +
         "</section>\n";
}

}  // namespace cleave::inline report
