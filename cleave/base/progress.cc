#include "cleave/base/progress.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/log.h"

namespace cleave::inline base {
namespace {

constexpr int kMaxBar = 30;  // columns inside the brackets
constexpr int kMinBar = 5;

std::string two_digits(int64_t value) {
  return str(value < 10 ? "0" : "", value);
}

bool is_live_terminal() {
  const char* term = getenv("TERM");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  if (term == nullptr || isatty(STDOUT_FILENO) != 1) return false;
  return !std::string_view(term).empty() && std::string_view(term) != "dumb";
}

int terminal_width() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

/// The text, without its last figures if it has more than `width` columns: a part of a number would
/// be another number. Two spaces are between figures, and one in the count before them.
std::string fitted(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  const size_t figure = text.rfind("  ", width);
  const size_t end = figure == std::string::npos ? text.rfind(' ', width) : figure;
  return text.substr(0, end == std::string::npos ? 0 : end);
}

}  // namespace

std::string duration_text(double seconds) {
  const double shown = std::clamp(seconds, 0.0, 1e12);
  if (shown > 0 && shown < 0.9995) return fixed_text(1000 * shown, shown < 0.0095 ? 1 : 0) + "ms";
  if (shown < 9.95) return fixed_text(shown, 1) + "s";
  const int64_t whole = std::llround(shown);
  if (whole < 60) return str(whole, "s");
  if (whole < 3600) return str(whole / 60, "m ", two_digits(whole % 60), "s");
  return str(whole / 3600, "h ", two_digits(whole % 3600 / 60), "m");
}

std::string count_text(double count) {
  constexpr std::array<std::string_view, 5> kSuffixes{"", "k", "M", "B", "T"};
  size_t suffix = 0;
  while (count >= 999.5 && suffix + 1 < kSuffixes.size()) {
    count /= 1000;
    ++suffix;
  }
  const int digits = suffix == 0 || count >= 99.95 ? 0 : count >= 9.995 ? 1 : 2;
  return fixed_text(count, digits) + std::string(kSuffixes[suffix]);
}

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      is_terminal_(options_.may_be_live && is_live_terminal()),
      start_s_(options_.clock()),
      last_shown_s_(is_terminal_ ? start_s_ - options_.draw_every_s : start_s_),
      done_(options_.done) {
  if (options_.total <= 0) CLEAVE_BUG("progress over ", options_.total, " ", options_.unit, "s");
}

Progress::~Progress() {
  if (is_terminal_) set_live_line("");
}

void Progress::update(int64_t done, const ProgressReading& reading) {
  done_ = done;
  const ProgressReading before = std::exchange(reading_, reading);
  if (std::isnan(reading_.eval_loss)) {
    reading_.eval_loss = before.eval_loss;
    reading_.eval_accuracy = before.eval_accuracy;
  }
  const double now = options_.clock();
  const double every = is_terminal_ ? options_.draw_every_s : options_.line_every_s;
  if (is_finished_ || is_quiet() || now - last_shown_s_ < every) return;
  last_shown_s_ = now;
  if (is_terminal_) {
    set_live_line(live_line(terminal_width(), now));
  } else if (done_ < options_.total) {  // finish() logs the last line
    log_status(count(), figures(), time_left(now));
  }
}

void Progress::finish() {
  if (std::exchange(is_finished_, true)) return;
  if (is_terminal_) set_live_line("");
  log_status(count(), figures(), "  took ", duration_text(options_.clock() - start_s_));
}

std::string Progress::count() const {
  return str(options_.unit, ' ', done_, '/', options_.total);
}

std::string Progress::figures() const {
  std::string text;
  if (!std::isnan(reading_.loss)) text += "  loss " + fixed_text(reading_.loss, 4);
  if (!std::isnan(reading_.reward_margin))
    text += "  reward margin " + fixed_text(reading_.reward_margin, 4);
  if (!std::isnan(reading_.reward_accuracy)) {
    text += "  reward accuracy " + fixed_text(reading_.reward_accuracy, 4);
  }
  if (!std::isnan(reading_.eval_loss)) text += "  eval " + fixed_text(reading_.eval_loss, 4);
  if (!std::isnan(reading_.eval_accuracy)) {
    text += "  accuracy " + fixed_text(reading_.eval_accuracy, 4);
  }
  if (!std::isnan(reading_.tokens_per_s)) {
    text += "  " + count_text(reading_.tokens_per_s) + " tokens/s";
  }
  return text;
}

std::string Progress::time_left(double now) const {
  const int64_t done_in_run = done_ - options_.done;
  if (done_in_run <= 0) return "";
  const double left = static_cast<double>(options_.total - done_) * (now - start_s_);
  return "  " + duration_text(left / static_cast<double>(done_in_run)) + " left";
}

// The last column stays free, because some terminals wrap a full line.
std::string Progress::live_line(int width, double now) const {
  const double share =
      std::clamp(static_cast<double>(done_) / static_cast<double>(options_.total), 0.0, 1.0);
  const std::string tail = str(' ', std::floor(share * 100), '%', figures(), time_left(now));
  const std::string head = count();
  // Three columns for " [" and "]".
  const int space = width - 1 - static_cast<int>(head.size() + tail.size()) - 3;
  std::string bar;
  if (space >= kMinBar) {
    const int columns = std::min(space, kMaxBar);
    const auto full = static_cast<size_t>(std::floor(share * columns));
    const auto empty = static_cast<size_t>(columns) - full;
    bar = " [" + std::string(full, '#') + std::string(empty, '.') + "]";
  }
  return fitted(head + bar + tail, static_cast<size_t>(std::max(width - 1, 0)));
}

}  // namespace cleave::inline base
