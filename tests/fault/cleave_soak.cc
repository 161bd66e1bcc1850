// cleave-soak: trains a tiny model on two ranks for a given time, with a checkpoint every 100 steps
// (threads: async saves), and checks by /proc and the run's metrics whether memory, descriptors,
// threads or the time of a step grow.
//
// usage: cleave-soak [--seconds S] [--ranks processes|threads] [--program FILE]
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <optional>
#include <thread>
#include <utility>

#include "cleave/base/clock.h"
#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "tests/fault/run.h"
#include "tests/support/level.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/train_program.h"

namespace cleave::fault {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int kNumWindows = 240;      // of a run
constexpr int kNumWarmUp = 40;        // first windows, which are ignored
constexpr int kSamplesPerWindow = 4;  // of the processes' resources
constexpr int kPrinted = 4;           // prints one window of so many
constexpr double kLongestStartS = 120, kLongestEndS = 120;
constexpr int64_t kFreshWarmUpSteps = 300;  // of the new run that the old one is compared with
constexpr double kLeastSideBySideS = 40;
constexpr int kNumComparisons = 20;  // in that time

constexpr double kMostMiBAnHour = 1;
constexpr double kMostPercentSlower = 2;
// Allowed growth of a short run, which cannot resolve 1 MiB per hour: allocators grow in such
// steps.
constexpr double kLeastMiB = 1;

constexpr std::string_view kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":48,
"intermediate_size":80,"num_hidden_layers":2,"num_attention_heads":6,"num_key_value_heads":2,
"head_dim":8,"max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu",
"tie_word_embeddings":false,"rope_theta":10000.0,"torch_dtype":"float32"})";

struct Options {
  double seconds = 60;
  bool as_processes = true;
  std::string program = test::program();
};

/// Current resources of all processes of a run together.
struct Sample {
  double mib = 0;  // memory without file mappings
  int num_descriptors = 0;
  int num_threads = 0;
  double cpu_s = 0;  // since their start
};

/// The number after `name` in a /proc file of lines "name: number".
double number_after(const std::string& text, std::string_view name) {
  const size_t at = text.find(str('\n', name, ':'));
  return at == std::string::npos ? 0 : std::stod(text.substr(at + name.size() + 2));
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// CPU seconds of all threads of a process, including ended ones; 0 if the process is gone.
double cpu_seconds(pid_t pid) {
  clockid_t clock{};
  timespec time{};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

Sample sample_of(const Run& run) {
  Sample sample;
  for (const pid_t pid : run.pids()) {
    const std::string status = text_of(str("/proc/", pid, "/status"));
    sample.mib += (number_after(status, "RssAnon") + number_after(status, "RssShmem")) / 1024;
    sample.num_threads += static_cast<int>(number_after(status, "Threads"));
    sample.cpu_s += cpu_seconds(pid);
    std::error_code gone;
    for (auto it = fs::directory_iterator(str("/proc/", pid, "/fd"), gone);
         it != fs::directory_iterator(); it.increment(gone)) {
      ++sample.num_descriptors;
    }
  }
  return sample;
}

/// Counts the lines of a growing file; each byte is read once.
class StepCount {
 public:
  explicit StepCount(std::string path) : path_(std::move(path)) {}
  int64_t now() {
    std::ifstream in(path_);
    in.seekg(read_);
    std::array<char, 1 << 16> bytes{};
    while (in.read(bytes.data(), bytes.size()) || in.gcount() > 0) {
      read_ += in.gcount();
      steps_ += std::count(bytes.begin(), bytes.begin() + in.gcount(), '\n');
    }
    return steps_;
  }

 private:
  std::string path_;
  std::streamoff read_ = 0;
  int64_t steps_ = 0;
};

/// A run and its step count.
struct Watched {
  Watched(const Words& command, const std::string& folder)
      : run(command, {}, folder + ".log"), steps(folder + "/metrics.jsonl") {}

  /// Throws Error if the run ends or takes too long.
  void wait_for(int64_t num_steps) {
    const double begun = monotonic_s();
    while (steps.now() < num_steps) {
      CLEAVE_CHECK(!run.has_ended() && monotonic_s() - begun < kLongestStartS, Code::kBug,
                   "the run did not reach step ", num_steps, ":\n", run.text());
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
  }

  Run run;
  StepCount steps;
};

/// CPU time of a number of steps.
struct Pace {
  int64_t num_steps = 0;
  double cpu_s = 0;
  [[nodiscard]] double us_per_step() const { return cpu_s / static_cast<double>(num_steps) * 1e6; }
};

/// How much longer a step takes, in percent, with twice the standard error of that mean.
struct Slowdown {
  double percent = 0, error = 0;
};

Slowdown mean_of(const std::vector<double>& percents) {
  const auto n = static_cast<double>(percents.size());
  double sum = 0, squares = 0;
  for (const double percent : percents) sum += percent;
  for (const double percent : percents) squares += std::pow(percent - sum / n, 2);
  return {.percent = sum / n, .error = 2 * std::sqrt(squares / (n - 1) / n)};
}

Pace pace_since_begin(Watched& watched) {
  return {.num_steps = watched.steps.now(), .cpu_s = sample_of(watched.run).cpu_s};
}

Pace operator-(const Pace& a, const Pace& b) {
  return {.num_steps = a.num_steps - b.num_steps, .cpu_s = a.cpu_s - b.cpu_s};
}

/// A part of a run. The minimum of its samples excludes temporary use, for example by a save.
struct Window {
  double hours = 0;  // from the start of the first window to the end of this one
  Pace pace{};
  double mib = 0;
  int num_descriptors = 0;
  int num_threads = 0;
};

/// The slope of a straight line through (x, y) by least squares.
double slope(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  double sum_x = 0, sum_y = 0, sum_xx = 0, sum_xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum_x += x[i];
    sum_y += y[i];
    sum_xx += x[i] * x[i];
    sum_xy += x[i] * y[i];
  }
  return (n * sum_xy - sum_x * sum_y) / (n * sum_xx - sum_x * sum_x);
}

Window watch_window(Watched& watched, double seconds) {
  const Pace before = pace_since_begin(watched);
  const Sample first = sample_of(watched.run);
  Window window{
      .mib = first.mib, .num_descriptors = first.num_descriptors, .num_threads = first.num_threads};
  for (int i = 0; i < kSamplesPerWindow; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / kSamplesPerWindow));
    const Sample sample = sample_of(watched.run);
    window.mib = std::min(window.mib, sample.mib);
    window.num_descriptors = std::min(window.num_descriptors, sample.num_descriptors);
    window.num_threads = std::min(window.num_threads, sample.num_threads);
  }
  window.pace = pace_since_begin(watched) - before;
  return window;
}

void print(const Window& window) {
  std::cout << std::fixed << std::setprecision(1) << std::setw(8) << window.hours * 60 << " min"
            << std::setw(9) << window.pace.num_steps << " steps" << std::setw(9)
            << window.pace.us_per_step() << " us each" << std::setprecision(2) << std::setw(10)
            << window.mib << " MiB" << std::setw(5) << window.num_descriptors << " descriptors"
            << std::setw(4) << window.num_threads << " threads" << std::endl;
}

/// Number of warnings and errors in the output.
int64_t num_messages(const std::string& text) {
  int64_t found = 0;
  for (size_t at = 0; (at = text.find("cleave: ", at)) != std::string::npos; ++at) ++found;
  return found;
}

class Soak {
 public:
  explicit Soak(Options options) : options_(std::move(options)) {
    std::ofstream(folder_ / "tiny.json") << kConfig;
  }

  /// Returns what grew, as text; "" if nothing did. Throws Error if a run does not start.
  std::string watch() {
    Watched old(command("old"), folder_ / "old");
    old.wait_for(1);
    const double start = monotonic_s();
    for (int w = 0; w < kNumWindows && !old.run.has_ended(); ++w) {
      Window window = watch_window(old, options_.seconds / kNumWindows);
      window.hours = (monotonic_s() - start) / 3600;
      if (w % kPrinted == kPrinted - 1) print(window);
      if (w >= kNumWarmUp) windows_.push_back(window);
    }
    if (old.run.has_ended()) return str("the run ended by itself:\n", old.run.text());
    const Slowdown slower = compare_with_a_new_run(old);
    kill(old.run.pid(), SIGTERM);
    const auto code = old.run.wait(kLongestEndS);
    std::string grew = what_grew(slower, old.steps.now());
    if (num_messages(old.run.text()) != 0) grew += "warnings:\n" + old.run.text();
    if (code != 128 + SIGTERM) {
      grew += str("exit ", code.value_or(-1), " after SIGTERM:\n", old.run.text());
    }
    return grew;
  }

 private:
  [[nodiscard]] Words command(const std::string& name) const {
    Words words;
    if (options_.as_processes) words = {options_.program, "launch", "-n", "2", "--"};
    words.push_back(options_.program);
    for (const std::string& word :
         test::train(folder_ / name, {"--model", folder_ / "tiny.json", "--tp", "2", "--steps",
                                      "1000000000", "--save-every", "100", "--keep-last", "2"})) {
      words.push_back(word);
    }
    if (!options_.as_processes) words.emplace_back("--async-save");
    return words;
  }

  /// How much more CPU time a step of the old run takes than a step of a new run. Both run at the
  /// same time: other load changes even the CPU time of a step by tens of percent from minute to
  /// minute, but of both runs in the same way.
  [[nodiscard]] Slowdown compare_with_a_new_run(Watched& old) const {
    Watched fresh(command("fresh"), folder_ / "fresh");
    fresh.wait_for(kFreshWarmUpSteps);
    const double seconds = std::max(options_.seconds / 20, kLeastSideBySideS) / kNumComparisons;
    std::vector<double> percents;
    for (int i = 0; i < kNumComparisons; ++i) {
      const Pace old_before = pace_since_begin(old), fresh_before = pace_since_begin(fresh);
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      const Pace of_old = pace_since_begin(old) - old_before;
      const Pace of_fresh = pace_since_begin(fresh) - fresh_before;
      if (of_old.num_steps == 0 || of_fresh.num_steps == 0) continue;  // the runs were suspended
      percents.push_back((of_old.us_per_step() / of_fresh.us_per_step() - 1) * 100);
    }
    return mean_of(percents);
  }

  template <class Value>
  [[nodiscard]] std::vector<double> all(Value Window::*member) const {
    std::vector<double> values;
    for (const Window& window : windows_) values.push_back(static_cast<double>(window.*member));
    return values;
  }

  /// The minimum over the first third of the windows, and over the last third.
  [[nodiscard]] std::pair<double, double> first_and_last(int Window::*member) const {
    const std::vector<double> values = all(member);
    const auto part = static_cast<std::ptrdiff_t>(values.size() / 3);
    return {*std::min_element(values.begin(), values.begin() + part),
            *std::min_element(values.end() - part, values.end())};
  }

  [[nodiscard]] std::string what_grew(const Slowdown& slower, int64_t num_steps) const {
    const double hours = windows_.back().hours - windows_.front().hours;
    const double mib_an_hour = slope(all(&Window::hours), all(&Window::mib));
    const auto [fd_first, fd_last] = first_and_last(&Window::num_descriptors);
    const auto [threads_first, threads_last] = first_and_last(&Window::num_threads);
    test::note_measured("T4 ", num_steps, " steps in ", windows_.back().hours * 60, " minutes as ",
                        options_.as_processes ? "processes" : "threads", ": memory ", mib_an_hour,
                        " MiB/h of ", windows_.back().mib, " MiB, descriptors ", fd_first, " and ",
                        fd_last, ", threads ", threads_first, " and ", threads_last,
                        ", a step takes ", slower.percent, " +- ", slower.error,
                        " % more than in a new run");
    std::string grew;
    if (mib_an_hour > std::max(kMostMiBAnHour, kLeastMiB / hours)) grew += "memory grew; ";
    if (fd_last != fd_first) grew += "descriptors changed; ";
    if (threads_last != threads_first) grew += "threads changed; ";
    if (!(slower.percent - slower.error <= kMostPercentSlower)) grew += "steps became slower; ";
    return grew;
  }

  const test::TempFolder folder_;
  Options options_;
  std::vector<Window> windows_;
};

Options read_options(const Words& words) {
  Options options;
  for (size_t i = 0; i < words.size(); i += 2) {
    CLEAVE_CHECK(i + 1 < words.size(), Code::kUsage, words[i], " has no value");
    const std::string& value = words[i + 1];
    if (words[i] == "--seconds") {
      options.seconds = std::stod(value);
    } else if (words[i] == "--ranks") {
      options.as_processes = value == "processes";
    } else if (words[i] == "--program") {
      options.program = value;
    } else {
      throw Error(Code::kUsage,
                  str("unknown flag ", words[i], "; expected --seconds, --ranks, --program"));
    }
  }
  return options;
}

}  // namespace
}  // namespace cleave::fault

int main(int argc, char** argv) {
  try {
    cleave::fault::Soak soak(cleave::fault::read_options({argv + 1, argv + argc}));
    const std::string grew = soak.watch();
    if (!grew.empty()) std::cerr << "cleave-soak: " << grew << '\n';
    return grew.empty() ? 0 : 1;
  } catch (const cleave::Error& error) {
    std::cerr << "cleave-soak: " << error.what() << '\n';
    return static_cast<int>(error.code());
  }
}
