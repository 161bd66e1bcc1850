#include <algorithm>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/error.h"
#include "cleave/chat/chat_reader.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/gguf.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/text/jsonl.h"
#include "cleave/tokenizer/tokenizer.h"

namespace cleave::cli {
namespace {

struct Options {
  std::string tokenizer;
  std::vector<std::string> text;  // the last one counts
  std::string file;
  std::string chat;  // file of conversations
  std::string chat_template;
  std::string train_on = "assistant";
  bool special = true;
  bool json = false;
};

struct Tokens {
  std::string text;
  std::vector<int64_t> ids;
  std::vector<std::string> spelled;  // as in the tokenizer's files
  std::string decoded;
};

std::string input(const Options& options) {
  if (!options.text.empty()) return options.text.back();
  if (!options.file.empty()) {
    require_file("--file", options.file);
    return read_file(options.file);
  }
  announce_stdin();
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

Tokens tokenized(const Tokenizer& tokenizer, std::string text, bool special) {
  Tokens tokens;
  tokens.text = std::move(text);
  tokens.ids = tokenizer.encode(tokens.text, {.add_special = special});
  for (const int64_t id : tokens.ids) tokens.spelled.push_back(tokenizer.token(id).value_or(""));
  tokens.decoded = tokenizer.decode(tokens.ids, /*skip_special=*/true);
  return tokens;
}

// Counts the bytes that begin a UTF-8 character.
int64_t num_characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; });
}

std::string round_trip(const Tokens& tokens) {
  if (tokens.decoded == tokens.text) return "equal";
  const auto [a, b] = std::mismatch(tokens.text.begin(), tokens.text.end(), tokens.decoded.begin(),
                                    tokens.decoded.end());
  return str("differs from byte ", a - tokens.text.begin(), " on");
}

nlohmann::ordered_json as_json(const Tokenizer& tokenizer, const Tokens& tokens) {
  return {{"kind", tokenizer.kind()},
          {"vocab_size", tokenizer.vocab_size()},
          {"bytes", tokens.text.size()},
          {"characters", num_characters(tokens.text)},
          {"count", tokens.ids.size()},
          {"ids", tokens.ids},
          {"tokens", tokens.spelled},
          {"text", tokens.decoded},
          {"round_trip", tokens.decoded == tokens.text}};
}

std::string quoted(const std::string& text) {
  return nlohmann::ordered_json(text).dump(-1, ' ', false,
                                           nlohmann::ordered_json::error_handler_t::replace);
}

void print(const Tokenizer& tokenizer, const Tokens& tokens) {
  std::cout << "tokenizer   " << tokenizer.kind() << ", " << tokenizer.vocab_size() << " tokens\n"
            << "text        " << counted(tokens.text.size(), "byte") << ", "
            << counted(num_characters(tokens.text), "character") << '\n'
            << "count       " << counted(tokens.ids.size(), "token") << '\n'
            << "ids        ";
  for (const int64_t id : tokens.ids) std::cout << ' ' << id;
  std::cout << "\ntokens     ";
  for (const std::string& token : tokens.spelled) std::cout << ' ' << quoted(token);
  std::cout << "\nround trip  " << round_trip(tokens) << '\n';
}

void print_chat(const Tokenizer& tokenizer, const TokenizedChat& chat, const std::string& place,
                bool json) {
  const auto trained = std::count(chat.is_trained.begin(), chat.is_trained.end(), true);
  if (json) {
    std::vector<std::string> tokens;
    for (const int64_t id : chat.ids) tokens.push_back(tokenizer.token(id).value_or(""));
    const nlohmann::ordered_json row{{"place", place},           {"count", chat.ids.size()},
                                     {"trained_count", trained}, {"ids", chat.ids},
                                     {"tokens", tokens},         {"trained", chat.is_trained}};
    std::cout << row.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) << '\n';
    return;
  }
  std::cout << place << ": " << counted(chat.ids.size(), "token") << ", " << trained
            << " trained (+)\n";
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    std::cout << (chat.is_trained[i] ? "+ " : "  ") << std::setw(7) << chat.ids[i] << ' '
              << quoted(tokenizer.token(chat.ids[i]).value_or("")) << '\n';
  }
}

/// The folder or GGUF file of the tokenizer; "" for bytes.
std::string place_of(const std::string& tokenizer) {
  if (tokenizer == "bytes") return "";
  return resolve_run_folder(local_model(tokenizer, "--tokenizer")).string();
}

/// Only the library reads the tokenizer of a GGUF file.
std::shared_ptr<const Tokenizer> open_tokenizer(const std::string& place) {
  if (place.empty()) return byte_tokenizer();
  if (!is_gguf(place)) return load_tokenizer(place);
  std::shared_ptr<const Tokenizer> tokenizer;
  library_function<decltype(cleave_load_tokenizer)>("cleave_load_tokenizer")(place, tokenizer);
  return tokenizer;
}

std::shared_ptr<const ChatTemplate> open_template(const std::string& wanted,
                                                  const std::string& place,
                                                  const Tokenizer& tokenizer) {
  if (!wanted.empty() || !is_gguf(place)) {
    return load_chat_template(wanted, place, tokenizer, kTrainingTime);
  }
  std::shared_ptr<const ChatTemplate> found;
  library_function<decltype(cleave_load_chat_template)>("cleave_load_chat_template")(
      place, tokenizer, found);
  return found;
}

/// Prints the tokens of each conversation of a file.
void print_chats(const Tokenizer& tokenizer, const std::string& place, const Options& options) {
  require_file("--chat", options.chat);
  require_chat_template(options.chat_template);
  (void)holds_chats({options.chat});  // refuses what train refuses
  ChatReader reader(
      // Not owned.
      {std::shared_ptr<const Tokenizer>(), &tokenizer},
      {.chat_template = open_template(options.chat_template, place, tokenizer),
       .train_on_all = options.train_on == "all"});
  JsonLines rows(options.chat);
  while (const std::optional<Json> row = rows.next()) {
    print_chat(tokenizer, reader.read(*row, rows.place()), rows.place(), options.json);
  }
}

void define(Flags& flags, Options& options) {
  flags.add(option::tokenizer(&options.tokenizer, "required"));
  flags.add({&options.text, "text", "TEXT", "text to tokenize", "stdin", option::Each{}});
  flags.add({&options.file, "file", "FILE", "file with the text"});
  flags.add({&options.chat, "chat", "FILE", "JSONL of chats; shows which tokens the loss is on"});
  flags.add(option::chat_template(&options.chat_template));
  flags.add(option::train_on(&options.train_on));
  flags.exclusive({"text", "file", "chat"});
  flags.add({&options.special, "special", "", "add no begin and end tokens to the text"});
  flags.add({&options.json, "json", "", "print one JSON object", "off"});
}

}  // namespace

Command tokenize_command() {
  return {.name = "tokenize",
          .summary = "show how a tokenizer splits a text: ids, tokens, round trip",
          .usage = "--tokenizer bytes|DIR [--text TEXT | --file FILE | --chat FILE]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<Options>();
            define(flags, *options);
            return [options] {
              require_tokenizer(options->tokenizer);
              const std::string place = place_of(options->tokenizer);
              const auto tokenizer = open_tokenizer(place);
              if (!options->chat.empty()) {
                print_chats(*tokenizer, place, *options);
                return 0;
              }
              const Tokens tokens = tokenized(*tokenizer, input(*options), options->special);
              if (options->json) {
                std::cout << as_json(*tokenizer, tokens)
                                 .dump(-1, ' ', false,
                                       nlohmann::ordered_json::error_handler_t::replace)
                          << '\n';
              } else {
                print(*tokenizer, tokens);
              }
              return 0;
            };
          }};
}

}  // namespace cleave::cli
