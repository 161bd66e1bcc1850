#include "cleave/generate/chat.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <unistd.h>
#include <utility>

#include "cleave/base/log.h"
#include "cleave/generate/printer.h"
#include "cleave/text/utf8.h"

namespace cleave::inline generation {
namespace {

std::atomic<bool> is_interrupted{false};
std::atomic<bool> is_prompting{false};  // a terminal shows the prompt

constexpr char kPrompt[] = "> ";

/// The terminal has discarded the line that was typed. The handler shows the prompt again, because
/// another thread than the one that waits for input may get the signal.
extern "C" void on_interrupt(int /*signal*/) {
  is_interrupted = true;
  constexpr char kAgain[] = "\nCtrl-D ends the chat\n> ";
  if (is_prompting) (void)!::write(STDOUT_FILENO, kAgain, sizeof(kAgain) - 1);
}

/// While it lives, SIGINT ends no wait for input and not the program: it sets is_interrupted.
class InterruptGuard {
 public:
  InterruptGuard() {
    struct sigaction action = {};
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, &before_);
  }
  ~InterruptGuard() { sigaction(SIGINT, &before_, nullptr); }
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction before_ = {};
};

/// The next line of stdin; nullopt at its end. A terminal shows a prompt.
std::optional<std::string> next_line() {
  const bool is_terminal = isatty(STDIN_FILENO) != 0;
  is_prompting = is_terminal;
  if (is_terminal) write_stdout(kPrompt);
  char* buffer = nullptr;
  size_t capacity = 0;
  const ssize_t size = ::getline(&buffer, &capacity, stdin);
  is_prompting = false;
  std::string line = size > 0 ? std::string(buffer, static_cast<size_t>(size)) : "";
  std::free(buffer);  // NOLINT(cppcoreguidelines-no-malloc): getline allocates
  if (size < 0) {
    if (is_terminal) write_stdout("\n");
    return std::nullopt;
  }
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  // A file that was written on Windows may begin with it.
  if (line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  return line;
}

/// One chat with a model.
class Chat {
 public:
  explicit Chat(ChatModel& chat)
      : chat_(chat),
        history_(chat.chat_template, chat.tokenizer),
        positions_(chat.model.facts().max_positions),
        end_(chat.chat_template->turn_end()) {
    if (const auto id = stop_id(*chat.tokenizer, end_)) {
      chat.settings.eos_ids.push_back(*id);
      end_.clear();
    }
  }

  void run() {
    std::optional<InterruptGuard> guard;
    if (isatty(STDIN_FILENO) != 0) {
      guard.emplace();
      log_info(
          "Type a message. /reset forgets the conversation, /system TEXT sets the system "
          "message, Ctrl-C stops an answer, Ctrl-D ends the chat.");
    }
    while (const std::optional<std::string> line = next_line()) {
      if (line->empty()) continue;
      if (line->starts_with('/')) {
        command(*line);
      } else {
        try {
          answer(*line);
        } catch (const Error& error) {
          // The template refuses the message: some have no system message. Or the tokenizer has
          // more ids than the model.
          const bool is_refused = error.code() == Code::kFormat || error.code() == Code::kShape;
          if (!is_refused || !guard) throw;
          log_warning(error.what());
          history_.drop_last();
        }
      }
    }
  }

  /// Answers each message in a conversation of its own.
  void run(const std::vector<std::string>& messages) {
    for (const std::string& message : messages) {
      history_.reset();
      answer(message);
    }
  }

 private:
  void command(const std::string& line) {
    if (line == "/reset") {
      has_dropped_ = false;
      history_.reset();
    } else if (line == "/system" || line.starts_with("/system ")) {
      has_dropped_ = false;
      history_.set_system(line.substr(std::min<size_t>(line.size(), 8)));
    } else {
      log_warning("there is no command ", line.substr(0, line.find(' ')),
                  "; expected /reset or /system TEXT; Ctrl-D ends the chat");
    }
  }

  void answer(const std::string& message) {
    history_.add("user", message);
    // Half of the positions are kept for the answer, or what it may need.
    const int64_t most_new = std::min(chat_.settings.max_new_tokens, positions_ / 2);
    int64_t dropped = 0;
    const Ids prompt = history_.prompt(positions_ - most_new + 1, positions_, &dropped);
    if (static_cast<int64_t>(prompt.size()) > positions_) {
      warn("the message has ", prompt.size(), " tokens; the model has ", positions_,
           " positions; write a shorter one");
      history_.drop_last();
      return;
    }
    // From then on, most messages take the place of others: one warning is enough.
    if (dropped > 0 && !std::exchange(has_dropped_, true)) {
      warn("the conversation does not fit into the model's ", positions_,
           " positions; from now on the oldest messages are dropped; /reset starts another "
           "conversation");
    }
    const std::string text = generated(prompt);
    history_.add("assistant", text);
  }

  std::string generated(const Ids& prompt) {
    is_interrupted = false;
    AnswerText answer(end_);
    StreamDecoder decoder(chat_.tokenizer);
    decoder.skip(prompt);
    GenerateSettings settings = chat_.settings;
    settings.first_prompt = num_answers_++;  // another answer draws other numbers
    const EndsText also = settings.ends_text;
    settings.ends_text = [&](std::span<const int64_t> before, std::span<const int64_t> ids) {
      return is_interrupted || answer.has_ended() || (also && also(before, ids));
    };
    const Ids& ends = settings.eos_ids;
    // Called before ends_text.
    const auto on_token = [&](int64_t, int64_t, int64_t id) {
      if (std::find(ends.begin(), ends.end(), id) != ends.end()) return;
      print(answer.push(decoder.push(id)));
    };
    const Generation generation = generate(chat_.model, chat_.tp, {prompt}, settings, on_token);
    print(answer.push(decoder.finish()) + answer.finish() + "\n");
    const Ids& ids = generation.prompts.front().front().ids;
    const auto count = static_cast<int64_t>(ids.size());
    const bool is_cut = !answer.has_ended() && !is_interrupted &&
                        std::find(ends.begin(), ends.end(), ids.back()) == ends.end();
    if (is_cut && count >= settings.max_new_tokens) {
      warn("the answer ends after --max-new-tokens ", settings.max_new_tokens);
    } else if (is_cut && count >= most_new_ids(prompt, positions_)) {
      warn("the answer ends at the last of the model's ", positions_, " positions");
    }
    return answer.text();
  }

  void print(const std::string& text) const {
    if (chat_.prints) write_stdout(text);
  }

  template <class... Parts>
  void warn(const Parts&... parts) const {
    if (chat_.prints) log_warning(parts...);
  }

  ChatModel& chat_;
  ChatHistory history_;
  int64_t positions_;
  std::string end_;
  int64_t num_answers_ = 0;
  bool has_dropped_ = false;  // messages of this conversation
};

}  // namespace

std::optional<int64_t> stop_id(const Tokenizer& tokenizer, const std::string& end) {
  if (end.empty()) return std::nullopt;
  if (const auto id = tokenizer.id_of(end)) return id;
  const Ids ids = tokenizer.encode(end, {.add_special = false});
  if (ids.empty() || !tokenizer.is_special(ids.front())) return std::nullopt;
  const std::optional<std::string> first = tokenizer.token(ids.front());
  // Any other text has the unknown token, which does not end an answer.
  return first && end.starts_with(*first) ? std::optional(ids.front()) : std::nullopt;
}

std::string AnswerText::push(const std::string& text) {
  if (has_ended_) return {};
  held_ += text;
  size_t shown = held_.size();
  if (!end_.empty()) {
    const size_t found = held_.find(end_);
    has_ended_ = found != std::string::npos;
    if (has_ended_) {
      shown = found;
    } else {
      // The longest tail that begins the end stays.
      size_t tail = std::min(held_.size(), end_.size() - 1);
      while (tail > 0 && !end_.starts_with(std::string_view(held_).substr(held_.size() - tail))) {
        --tail;
      }
      shown -= tail;
    }
  }
  std::string out = held_.substr(0, shown);
  held_ = has_ended_ ? "" : held_.substr(shown);
  shown_ += out;
  return out;
}

std::string AnswerText::finish() {
  shown_ += held_;
  return std::exchange(held_, "");
}

void ChatHistory::reset() {
  turns_.clear();
}

void ChatHistory::set_system(const std::string& text) {
  turns_.clear();
  system_.clear();
  if (!text.empty()) system_.push_back(chat_message("system", text));
}

void ChatHistory::add(const std::string& role, const std::string& text) {
  turns_.push_back(chat_message(role, text));
}

void ChatHistory::drop_last() {
  if (!turns_.empty()) turns_.pop_back();
}

Ids ChatHistory::prompt(int64_t limit, int64_t positions, int64_t* dropped) {
  auto first = turns_.begin();
  while (true) {
    ChatMessages all = system_;
    all.insert(all.end(), first, turns_.end());
    Ids ids = tokenizer_->encode(template_->render(all, /*add_generation_prompt=*/true),
                                 {.add_special = false});
    const auto size = static_cast<int64_t>(ids.size());
    if (size > limit && turns_.end() - first > 2) {
      first += 2;  // a question and its answer
      continue;
    }
    if (size <= positions) {
      *dropped += first - turns_.begin();
      turns_.erase(turns_.begin(), first);
    }
    return ids;
  }
}

void run_chat(ChatModel chat) {
  Chat(chat).run();
}

void answer_each(ChatModel chat, const std::vector<std::string>& messages) {
  Chat(chat).run(messages);
}

}  // namespace cleave::inline generation
