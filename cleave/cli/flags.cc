#include "cleave/cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"
#include "cleave/cli/check.h"
#include "cleave/cli/config.h"
#include "cleave/cli/synonyms.h"

namespace cleave::cli {
namespace {

// The flag as typed: "--steps", "-n".
std::string dashed(const std::string& name) {
  return (name.size() == 1 ? "-" : "--") + name;
}

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// "train", "bench train".
std::string command_name(const CLI::App& app) {
  const CLI::App* family = app.get_parent();
  const bool is_in_family = family != nullptr && family->get_parent() != nullptr;
  return (is_in_family ? family->get_name() + " " : "") + app.get_name();
}

// CLI11 takes any word after a flag as its value. If that word is a flag, the value is missing.
void refuse_swallowed_flag(const Flags::Flag& flag, const CLI::App& app) {
  for (const std::string& value : flag.option->results()) {
    const std::string word = value.substr(0, value.find('='));
    const bool is_flag = word.starts_with("--") && app.get_option_no_throw(word) != nullptr;
    const std::string name = dashed(flag.text.name);
    CLEAVE_CHECK(!is_flag, Code::kUsage, name, " has no value, ", word, " follows it; give it as ",
                 name, ' ', flag.text.value);
  }
}

// "--batch-size,--batch_size": both spellings are accepted; torch.distributed.launch uses '_'.
std::string spellings(const std::string& name) {
  if (name.size() == 1) return dashed(name);
  std::string other = name;
  std::replace(other.begin(), other.end(), '-', '_');
  return "--" + name + (other == name ? "" : ",--" + other);
}

// What follows the flag that is meant: " bf16", or all of its choices if it lacks this one.
std::string rest_of(const Synonym& synonym, const FlagText& flag) {
  const bool has_choices = flag.value.find('|') != std::string::npos;
  if (!has_choices || !synonym.rest.starts_with(' ')) return std::string(synonym.rest);
  const std::string choice = str('|', synonym.rest.substr(1), '|');
  const bool is_one = str('|', flag.value, '|').find(choice) != std::string::npos;
  return is_one ? std::string(synonym.rest) : ' ' + flag.value;
}

// The key of a config file that is meant by an unknown one.
std::string likely_key(const std::string& key, const std::vector<std::string>& names) {
  for (const Synonym& synonym : synonyms_of(key)) {
    if (contains(names, synonym.flag)) return std::string(synonym.flag);
  }
  return nearest_names(key, names, 1).front();
}

CLI::Option* add_option(CLI::App& app, const Flags::Flag& flag) {
  const auto keep_raw = [](const CLI::results_t&) { return true; };
  CLI::Option* option = app.add_option(spellings(flag.text.name), keep_raw, flag.text.help);
  option->type_name(flag.text.value);
  if (flag.arity == Arity::kMany) {
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  } else {
    option->expected(1)->allow_extra_args(false);
  }
  option->multi_option_policy(flag.arity == Arity::kOne ? CLI::MultiOptionPolicy::TakeLast
                                                        : CLI::MultiOptionPolicy::TakeAll);
  return option;
}

}  // namespace

Flags::Flags(CLI::App& app) : app_(&app) {
  app.allow_extras();
}

void Flags::add_flag(FlagText text, Arity arity, Set set) {
  Flag flag{.text = std::move(text), .arity = arity, .group = group_, .set = std::move(set)};
  if (arity != Arity::kSwitch) flag.option = add_option(*app_, flag);
  flags_.push_back(std::move(flag));
}

void Flags::add(std::string* target, FlagText text) {
  if (text.default_text.empty()) text.default_text = *target;
  add_flag(std::move(text), Arity::kOne, [target](const auto& from, const auto& values) {
    read_value(Given{from, values.back()}, target);
  });
}

void Flags::choice(std::string* target, FlagText text, std::vector<std::string> choices) {
  if (text.default_text.empty()) text.default_text = *target;
  for (const std::string& choice : choices) text.value += (text.value.empty() ? "" : "|") + choice;
  add_flag(std::move(text), Arity::kOne,
           [target, choices = std::move(choices)](const auto& from, const auto& values) {
             read_choice(Given{from, values.back()}, choices, target);
           });
}

void Flags::many(std::vector<std::string>* target, FlagText text) {
  add_flag(std::move(text), Arity::kMany,
           [target](const auto& /*from*/, const auto& values) { *target = values; });
}

void Flags::each(std::vector<std::string>* target, FlagText text) {
  add_flag(std::move(text), Arity::kEach,
           [target](const auto& /*from*/, const auto& values) { *target = values; });
}

void Flags::toggle(bool* target, FlagText text) {
  const std::string name = text.name;
  add_flag(std::move(text), Arity::kSwitch, [target](const auto& /*from*/, const auto& values) {
    *target = values.back() == "true";
  });
  Flag& flag = flags_.back();
  flag.is_shown_negative = *target;
  flag.option = app_->add_flag(spellings(name))->description(flag.text.help);
  flag.opposite = app_->add_flag(spellings("no-" + name))->description(flag.text.help);
  // The form that restates the default only overrides a config file; help does not show it.
  (flag.is_shown_negative ? flag.option : flag.opposite)->group("");
}

void Flags::positional(std::string* target, FlagText text) {
  app_->add_option(text.name, *target, text.help)->type_name(text.value);
  positionals_.push_back(std::move(text));
}

void Flags::config() {
  add(&config_path_,
      {"config", "FILE.json", "JSON file with these flags as keys; the command line overrides it"});
}

void Flags::exclusive(std::vector<std::string> names) {
  exclusive_.push_back(std::move(names));
}

std::string Flags::shown(const std::optional<int64_t>& number) {
  return number ? str(*number) : "";
}

const Flags::Flag* Flags::find(std::string_view name) const {
  const auto at = std::find_if(flags_.begin(), flags_.end(),
                               [&](const Flag& flag) { return flag.text.name == name; });
  return at == flags_.end() ? nullptr : &*at;
}

void Flags::refuse_flag(const std::string& name) const {
  const std::string start = str("unknown flag ", name, "; ");
  for (const Synonym& synonym : synonyms_of(name)) {
    const Flag* flag = find(synonym.flag);
    if (flag == nullptr) continue;
    throw Error(Code::kUsage,
                str(start, "did you mean ", dashed(flag->text.name), rest_of(synonym, flag->text)));
  }
  if (name == "--model" && !positionals_.empty()) {
    throw Error(Code::kUsage, str(start, "did you mean cleave ", command_name(*app_), ' ',
                                  positionals_.front().value));
  }
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    if (!option->get_group().empty()) names.push_back(option->get_name());
  }
  const auto likely = likely_name(name, names);
  throw Error(Code::kUsage,
              str(start, likely ? "did you mean " + *likely
                                : str("see cleave ", command_name(*app_), " --help")));
}

// Refuses what CLI11 did not take, but for one word if a flag takes it.
void Flags::read_word() {
  std::vector<std::string> words;
  for (const std::string& word : app_->remaining()) {
    const bool is_flag = word.starts_with('-') && word != "-" && word != "--";
    if (is_flag) refuse_flag(word.substr(0, word.find('=')));
    words.push_back(word);
  }
  const auto taker =
      std::find_if(flags_.begin(), flags_.end(), [](const Flag& flag) { return flag.takes_word; });
  const bool takes_one = taker != flags_.end() && taker->option->count() == 0;
  if (takes_one && !words.empty()) word_ = words.front();
  const size_t most = takes_one ? 1 : 0;
  CLEAVE_CHECK(words.size() <= most, Code::kUsage, "unexpected word '", words[most],
               "'; see cleave ", command_name(*app_), " --help");
}

void Flags::read_command_line() {
  for (const Flag& flag : flags_) {
    std::vector<std::string> values = flag.option->results();
    if (flag.takes_word && !word_.empty()) values = {word_};
    if (flag.arity == Arity::kSwitch) {
      const bool is_on = flag.option->count() > 0;
      const bool is_off = flag.opposite->count() > 0;
      CLEAVE_CHECK(!is_on || !is_off, Code::kUsage, "--", flag.text.name, " and --no-",
                   flag.text.name, " exclude each other; give one");
      values.clear();
      if (is_on || is_off) values.emplace_back(is_on ? "true" : "false");
      for (const CLI::Option* option : {flag.option, flag.opposite}) {
        for (const std::string& value : option->results()) {
          CLEAVE_CHECK(value == "true", Code::kUsage, option->get_name(), " takes no value; got '",
                       value, '\'');
        }
      }
    }
    if (values.empty()) continue;
    on_command_line_.push_back(flag.text.name);
    flag.set(dashed(flag.text.name), values);
  }
}

bool Flags::is_hidden_by_command_line(const std::string& name) const {
  if (contains(on_command_line_, name)) return true;
  return std::any_of(exclusive_.begin(), exclusive_.end(), [&](const auto& names) {
    return contains(names, name) &&
           std::any_of(names.begin(), names.end(),
                       [&](const std::string& other) { return contains(on_command_line_, other); });
  });
}

void Flags::read_config(const std::string& path) {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (flag.text.name != "config") names.push_back(flag.text.name);
  }
  for (const ConfigEntry& entry : read_config_entries(path)) {
    const bool is_opposite = entry.name.starts_with("no-") && find(entry.name) == nullptr;
    const std::string name = is_opposite ? entry.name.substr(3) : entry.name;
    const Flag* flag = contains(names, name) ? find(name) : nullptr;
    CLEAVE_CHECK(flag != nullptr && (!is_opposite || flag->arity == Arity::kSwitch), Code::kUsage,
                 path, ": unknown key \"", entry.key, "\"; did you mean \"",
                 likely_key(entry.name, names), '"');
    CLEAVE_CHECK(!contains(in_config_, name), Code::kUsage, path, ": \"", entry.key,
                 "\" is given twice");
    in_config_.push_back(name);
    const std::vector<std::string> values = config_values(entry, flag->arity, is_opposite);
    if (!is_hidden_by_command_line(name)) flag->set(str(path, ": \"", entry.key, '"'), values);
  }
}

void Flags::resolve() {
  for (const Flag& flag : flags_) {
    const bool is_free_text = flag.arity == Arity::kEach;  // a prompt may look like a flag
    if (flag.arity != Arity::kSwitch && !is_free_text) refuse_swallowed_flag(flag, *app_);
  }
  read_word();
  read_command_line();
  if (!config_path_.empty()) {
    require_file("--config", config_path_);
    read_config(config_path_);
  }
  for (const auto& names : exclusive_) {
    std::string given;
    for (const std::string& name : names) {
      const bool counts = contains(on_command_line_, name) ||
                          (contains(in_config_, name) && !is_hidden_by_command_line(name));
      CLEAVE_CHECK(!counts || given.empty(), Code::kUsage, given, " and --", name,
                   " exclude each other; give one");
      if (counts) given = "--" + name;
    }
  }
}

bool Flags::is_given(std::string_view name) const {
  return contains(on_command_line_, name) || contains(in_config_, name);
}

void Flags::require(std::string_view name) const {
  const Flag* flag = find(name);
  if (flag == nullptr) CLEAVE_BUG("no flag --", name);
  CLEAVE_CHECK(is_given(name), Code::kUsage, dashed(flag->text.name), ' ', flag->text.value,
               " is missing; see cleave ", command_name(*app_), " --help");
}

}  // namespace cleave::cli
