#include "cleave/cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <optional>
#include <system_error>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"
#include "cleave/cli/check.h"
#include "cleave/cli/synonyms.h"
#include "cleave/cli/value.h"

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

// Refuses a flag of the command whose two hyphens an editor or a web page has made one long dash.
void refuse_long_dash(const std::string& word, const CLI::App& app) {
  constexpr std::string_view kDashes[] = {"\xE2\x80\x93", "\xE2\x80\x94", "\xE2\x88\x92"};
  for (const std::string_view dash : kDashes) {
    if (!word.starts_with(dash)) continue;
    const std::string meant = "--" + word.substr(dash.size(), word.find('=') - dash.size());
    CLEAVE_CHECK(app.get_option_no_throw(meant) == nullptr, Code::kUsage, "'", word,
                 "' begins with a long dash; did you mean ", meant, ", with two hyphens");
  }
}

// CLI11 takes any word after a flag as its value. If that word is a flag, the value is missing.
void refuse_swallowed_flag(const Flags::Flag& flag, const CLI::App& app) {
  for (const std::string& value : flag.option->results()) {
    const std::string word = value.substr(0, value.find('='));
    const bool is_flag = word.starts_with("--") && app.get_option_no_throw(word) != nullptr;
    const std::string name = dashed(flag.row.name);
    refuse_long_dash(value, app);
    CLEAVE_CHECK(!is_flag, Code::kUsage, name, " has no value: the flag ", word,
                 " follows it; give it as ", name, ' ', flag.row.value);
  }
}

// "--batch-size,--batch_size": both spellings are accepted; torch.distributed.launch uses '_'.
std::string spellings(const std::string& name) {
  if (name.size() == 1) return dashed(name);
  std::string other = name;
  std::replace(other.begin(), other.end(), '-', '_');
  return "--" + name + (other == name ? "" : ",--" + other);
}

// Whether a word without a flag is a value that other programs give to what is a switch here, as in
// --fsdp true, --fsdp "full_shard auto_wrap".
bool is_switch_value(const std::string& word) {
  constexpr std::string_view kWhole[] = {"true", "false", "yes", "no"};
  constexpr std::string_view kFirst[] = {"full_shard", "shard_grad_op", "hybrid_shard", "no_shard"};
  const std::string first = word.substr(0, word.find(' '));
  std::error_code problem;
  return (std::ranges::find(kWhole, word) != std::end(kWhole) ||
          std::ranges::find(kFirst, first) != std::end(kFirst)) &&
         !std::filesystem::exists(word, problem);
}

// What follows the flag that is meant: " bf16", or all of its choices if it lacks this one.
std::string rest_of(const Synonym& synonym, const option::Row& flag) {
  const bool has_choices = flag.value.find('|') != std::string::npos;
  if (!has_choices || !synonym.rest.starts_with(' ')) return std::string(synonym.rest);
  const std::string choice = str('|', synonym.rest.substr(1), '|');
  const bool is_one = str('|', flag.value, '|').find(choice) != std::string::npos;
  return is_one ? std::string(synonym.rest) : ' ' + flag.value;
}

// The key of a config file that is meant by an unknown one, if any is similar.
std::optional<std::string> likely_key(const std::string& key,
                                      const std::vector<std::string>& names) {
  for (const Synonym& synonym : synonyms_of(key)) {
    if (contains(names, synonym.flag)) return std::string(synonym.flag);
  }
  const auto likely = likely_name(key, names);
  const size_t distance = likely ? edit_distance(key, *likely) : key.size();
  const auto theirs = misspelled_synonym(
      key, distance, [&](std::string_view flag) { return contains(names, flag); });
  return theirs ? std::string(theirs->flag) : likely;
}

CLI::Option* add_option(CLI::App& app, const option::Row& row) {
  const Arity arity = arity_of(row);
  const auto keep_raw = [](const CLI::results_t&) { return true; };
  CLI::Option* option = app.add_option(spellings(row.name), keep_raw, row.help);
  option->type_name(row.value);
  if (arity == Arity::kMany) {
    option->expected(1, CLI::detail::expected_max_vector_size)->allow_extra_args();
  } else {
    option->expected(1)->allow_extra_args(false);
  }
  option->multi_option_policy(arity == Arity::kOne ? CLI::MultiOptionPolicy::TakeLast
                                                   : CLI::MultiOptionPolicy::TakeAll);
  return option;
}

// The default as help shows it; empty for a switch, whose name shows it, and for a list without
// values.
std::string default_of(const option::Row& row) {
  if (const auto* const* number = std::get_if<double*>(&row.target)) return str(**number);
  const Arity arity = arity_of(row);
  return arity == Arity::kOne ? option::text_of(row.target) : "";
}

}  // namespace

Flags::Flags(CLI::App& app) : app_(&app) {
  app.allow_extras();
}

void Flags::add(option::Row row) {
  if (row.default_text.empty()) row.default_text = default_of(row);
  if (const auto* choices = std::get_if<option::Choices>(&row.values)) {
    for (const std::string& choice : *choices) row.value += (row.value.empty() ? "" : "|") + choice;
  }
  Flag flag{.row = std::move(row), .group = group_};
  if (const auto* const* value = std::get_if<bool*>(&flag.row.target)) {
    flag.is_shown_negative = **value;
    const std::string& name = flag.row.name;
    flag.option = app_->add_flag(spellings(name))->description(flag.row.help);
    flag.opposite = app_->add_flag(spellings("no-" + name))->description(flag.row.help);
    // The form that restates the default only overrides a config file; help does not show it.
    (flag.is_shown_negative ? flag.option : flag.opposite)->group("");
  } else {
    flag.option = add_option(*app_, flag.row);
  }
  flags_.push_back(std::move(flag));
}

void Flags::add_all(const std::vector<option::Section>& sections) {
  for (const option::Section& section : sections) {
    group(section.title);
    for (const option::Row& row : section.rows) add(row);
  }
}

void Flags::positional(std::string* target, Positional text) {
  app_->add_option(text.name, *target, text.help)->type_name(text.value);
  positionals_.push_back(std::move(text));
}

void Flags::positional(std::vector<std::string>* targets, Positional text) {
  app_->add_option(text.name, *targets, text.help)->type_name(text.value);
  positionals_.push_back(std::move(text));
}

void Flags::takes_word(std::string_view name) {
  std::find_if(flags_.begin(), flags_.end(), [&](const Flag& flag) {
    return flag.row.name == name;
  })->takes_word = true;
}

void Flags::config() {
  add({&config_path_, "config", "FILE.json",
       "JSON file with these flags as keys; the command line overrides it"});
}

void Flags::exclusive(std::vector<std::string> names, std::vector<std::string> unless) {
  exclusive_.push_back({.names = std::move(names), .unless = std::move(unless)});
}

bool Flags::applies(const Exclusive& each) const {
  return std::none_of(each.unless.begin(), each.unless.end(),
                      [&](const std::string& flag) { return is_given(flag); });
}

const Flags::Flag* Flags::find(std::string_view name) const {
  const auto at = std::find_if(flags_.begin(), flags_.end(),
                               [&](const Flag& flag) { return flag.row.name == name; });
  return at == flags_.end() ? nullptr : &*at;
}

void Flags::refuse_flag(const std::string& name) const {
  const std::string start = str("unknown flag ", name, "; ");
  const auto has_flag = [&](std::string_view flag) { return find(flag) != nullptr; };
  const auto refuse = [&](const Synonym& synonym) {
    const option::Row& row = find(synonym.flag)->row;
    throw Error(Code::kUsage, str(start, "did you mean ", dashed(row.name), rest_of(synonym, row)));
  };
  for (const Synonym& synonym : synonyms_of(name)) {
    if (has_flag(synonym.flag)) refuse(synonym);
  }
  const std::string_view advice = advice_on(name, has_flag);
  if (!advice.empty()) throw Error(Code::kUsage, str(start, advice));
  if (name == "--model" && !positionals_.empty()) {
    throw Error(Code::kUsage, str(start, "did you mean cleave ", command_name(*app_), ' ',
                                  positionals_.front().value));
  }
  // Without dashes, which would make short names similar, and with dashes for underscores.
  const auto bare = [](const std::string& dashes_and_name) {
    std::string bare_name = dashes_and_name.substr(
        std::min(dashes_and_name.find_first_not_of('-'), dashes_and_name.size()));
    std::replace(bare_name.begin(), bare_name.end(), '_', '-');
    return bare_name;
  };
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    const bool is_flag = option->get_name().starts_with('-');
    if (is_flag && !option->get_group().empty()) names.push_back(bare(option->get_name()));
  }
  const auto likely = likely_name(bare(name), names);
  const size_t distance = likely ? edit_distance(bare(name), *likely) : name.size();
  if (const auto theirs = misspelled_synonym(name, distance, has_flag)) refuse(*theirs);
  throw Error(Code::kUsage,
              str(start, likely ? "did you mean " + dashed(*likely)
                                : str("see cleave ", command_name(*app_), " --help")));
}

void Flags::refuse_empty_positionals() const {
  for (const CLI::Option* option : app_->get_options()) {
    if (!option->get_positional()) continue;
    CLEAVE_CHECK(!contains(option->results(), ""), Code::kUsage, option->get_type_name(),
                 " is empty; see cleave ", command_name(*app_), " --help");
  }
}

// Refuses words that CLI11 did not use, except one word if a flag takes it.
void Flags::read_word() {
  std::vector<std::string> words;
  for (const std::string& word : app_->remaining()) {
    const bool is_flag = word.starts_with('-') && word != "-" && word != "--";
    if (is_flag) refuse_flag(word.substr(0, word.find('=')));
    refuse_long_dash(word, *app_);
    words.push_back(word);
  }
  for (const std::string& word : words) {
    CLEAVE_CHECK(!is_switch_value(word), Code::kUsage, "unexpected word '", word,
                 "'; a switch takes no value, as in --NAME and --no-NAME");
  }
  const auto taker =
      std::find_if(flags_.begin(), flags_.end(), [](const Flag& flag) { return flag.takes_word; });
  const bool takes_one = taker != flags_.end() && taker->option->count() == 0;
  if (takes_one && !words.empty()) word_ = words.front();
  const size_t most = takes_one ? 1 : 0;
  if (words.size() <= most) return;
  const std::string start = str("unexpected word '", words[most], "'; ");
  std::error_code problem;
  const bool is_file = std::filesystem::is_regular_file(words[most], problem);
  for (const char* name : {"prompt-file", "file", "prompt", "text", "data", "to"}) {
    const bool takes_file = std::string_view(name).ends_with("file");
    const Flag* flag = takes_file && !is_file ? nullptr : find(name);
    CLEAVE_CHECK(flag == nullptr || flag->option->count() > 0, Code::kUsage, start,
                 "did you mean --", name, " '", words[most], '\'');
  }
  throw Error(Code::kUsage, str(start, "see cleave ", command_name(*app_), " --help"));
}

/// Refuses a command line without a required flag. "cleave train my.txt" means --data my.txt.
void Flags::require_all() const {
  for (const Flag& flag : flags_) {
    const option::Row& row = flag.row;
    if (row.default_text != "required" || is_given(row.name)) continue;
    const std::string extension = std::filesystem::path(word_).extension();
    std::error_code problem;
    const bool is_data = row.name == "data" && extension != ".json" && extension != ".gguf" &&
                         std::filesystem::is_regular_file(word_, problem);
    std::string advice = is_data ? str("did you mean --data ", word_) : advice_();
    if (advice.empty()) advice = str("see cleave ", command_name(*app_), " --help");
    throw Error(Code::kUsage, str(dashed(row.name), ' ', row.value, " is missing; ", advice));
  }
}

// "true" or "false" if the command line sets the switch, else nothing.
static std::vector<std::string> switch_values(const Flags::Flag& flag) {
  const std::string& name = flag.row.name;
  const bool is_on = flag.option->count() > 0;
  const bool is_off = flag.opposite->count() > 0;
  CLEAVE_CHECK(!is_on || !is_off, Code::kUsage, "--", name, " and --no-", name,
               " exclude each other; give one");
  for (const CLI::Option* option : {flag.option, flag.opposite}) {
    for (const std::string& value : option->results()) {
      CLEAVE_CHECK(value == "true", Code::kUsage, option == flag.option ? "--" : "--no-", name,
                   " takes no value; got '", value, "'; give --", name, " or --no-", name);
    }
  }
  if (!is_on && !is_off) return {};
  return {is_on ? "true" : "false"};
}

void Flags::read_command_line() {
  for (const Flag& flag : flags_) {
    std::vector<std::string> values =
        flag.opposite != nullptr ? switch_values(flag) : flag.option->results();
    if (flag.takes_word && !word_.empty()) values = {word_};
    if (values.empty()) continue;
    on_command_line_.push_back(flag.row.name);
    read_values(dashed(flag.row.name), values, flag.row);
  }
}

bool Flags::is_hidden_by_command_line(const std::string& name) const {
  if (contains(on_command_line_, name)) return true;
  return std::any_of(exclusive_.begin(), exclusive_.end(), [&](const Exclusive& each) {
    return contains(each.names, name) && applies(each) &&
           std::any_of(each.names.begin(), each.names.end(),
                       [&](const std::string& other) { return contains(on_command_line_, other); });
  });
}

void Flags::read_config(const std::string& path) {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) {
    if (flag.row.name != "config") names.push_back(flag.row.name);
  }
  const std::vector<ConfigEntry> entries = read_config_entries(path);
  for (const ConfigEntry& entry : entries) {
    const bool is_opposite = entry.name.starts_with("no-") && find(entry.name) == nullptr;
    const std::string name = is_opposite ? entry.name.substr(3) : entry.name;
    const Flag* flag = contains(names, name) ? find(name) : nullptr;
    if (flag == nullptr || (is_opposite && flag->opposite == nullptr)) {
      const auto likely = likely_key(entry.name, names);
      throw Error(Code::kUsage,
                  str(path, ": unknown key \"", entry.key, "\"; ",
                      likely ? str("did you mean \"", *likely, '"')
                             : str("see cleave ", command_name(*app_), " --help for the keys")));
    }
    CLEAVE_CHECK(!contains(in_config_, name), Code::kUsage, path, ": \"", entry.key,
                 "\" is given twice");
    in_config_.push_back(name);
  }
  // Which keys the command line hides follows from all of them.
  for (size_t i = 0; i < entries.size(); ++i) {
    const ConfigEntry& entry = entries[i];
    const std::string& name = in_config_[i];
    const option::Row& row = find(name)->row;
    const auto values = config_values(entry, arity_of(row), /*is_opposite=*/name != entry.name);
    if (is_hidden_by_command_line(name)) continue;
    read_values(str(path, ": \"", entry.key, '"'), values, row);
  }
}

void Flags::check_exclusive() const {
  for (const Exclusive& each : exclusive_) {
    if (!applies(each)) continue;
    std::string given;
    for (const std::string& name : each.names) {
      const bool counts = contains(on_command_line_, name) ||
                          (contains(in_config_, name) && !is_hidden_by_command_line(name));
      CLEAVE_CHECK(!counts || given.empty(), Code::kUsage, given, " and --", name,
                   " exclude each other; give one");
      if (counts) given = "--" + name;
    }
  }
}

void Flags::resolve() {
  for (const Flag& flag : flags_) {
    const bool is_free_text = arity_of(flag.row) == Arity::kEach;  // a prompt may look like a flag
    if (flag.opposite == nullptr && !is_free_text) refuse_swallowed_flag(flag, *app_);
  }
  refuse_empty_positionals();
  read_word();
  read_command_line();
  if (!config_path_.empty()) {
    require_file("--config", config_path_);
    read_config(config_path_);
  }
  check_exclusive();
  require_all();
}

bool Flags::is_command(const std::string& name) const {
  const CLI::App* program = app_->get_parent();
  const auto has_name = [&](const CLI::App* command) { return command->get_name() == name; };
  return program != nullptr && !program->get_subcommands(has_name).empty();
}

bool Flags::is_given(std::string_view name) const {
  return contains(on_command_line_, name) || contains(in_config_, name);
}

}  // namespace cleave::cli
