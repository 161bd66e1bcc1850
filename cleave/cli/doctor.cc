#include "cleave/train/doctor.h"

#include <algorithm>
#include <iostream>
#include <link.h>
#include <memory>
#include <string_view>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/base/version.h"
#include "cleave/cli/command.h"
#include "cleave/cli/doctor.h"
#include "cleave/cli/library.h"
#include "cleave/cli/program.h"

namespace cleave::cli {
namespace {

using Object = nlohmann::ordered_json;

struct Options {
  bool exit_codes = false;
  bool json = false;
  std::string flight;
};

constexpr std::string_view kSignalMeaning =
    "ended by signal n: 129 closed terminal, 130 Ctrl-C, 137 SIGKILL, 143 SIGTERM";

void print_exit_codes(bool json) {
  Object list = Object::array();
  for (const ExitCode& row : exit_codes()) {
    list.push_back({{"code", row.code}, {"name", row.name}, {"meaning", row.meaning}});
    if (json) continue;
    const std::string code = str(row.code);
    std::cout << code << std::string(7 - code.size(), ' ') << row.name
              << std::string(10 - row.name.size(), ' ') << row.meaning << '\n';
  }
  if (json) {
    std::cout << list.dump() << '\n';
  } else {
    std::cout << "128+n  signal    " << kSignalMeaning << '\n';
  }
}

// Path of the loaded library whose file name begins with `stem`; empty if none is loaded.
std::string loaded_library(std::string_view stem) {
  std::pair<std::string_view, std::string> search{stem, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* data) {
        auto& [wanted, found] = *static_cast<std::pair<std::string_view, std::string>*>(data);
        const std::string path = info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).starts_with(wanted)) found = path;
        return 0;
      },
      &search);
  return search.second;
}

Object library_facts() {
  std::string why;
  if (!has_library_symbol("cleave_train", &why)) return {{"libcleave", why}};
  Object facts = {{"libcleave", loaded_library("libcleave.so")},
                  {"libtorch_path", loaded_library("libtorch_cpu.so")}};
  if (has_library_symbol("cleave_doctor", &why)) {
    Facts more;
    library_function<decltype(cleave_doctor)>("cleave_doctor")(more);
    for (auto& [name, value] : more) {
      std::replace(name.begin(), name.end(), ' ', '_');
      facts[name] = value;
    }
  }
  return facts;
}

std::string value_text(const std::string& name, const Object& value) {
  if (value.is_array()) {
    std::string text;
    for (const Object& word : value) text += (text.empty() ? "" : " ") + word.get<std::string>();
    return text.empty() ? "none" : text;
  }
  if (!value.is_number()) return value.get<std::string>();
  const bool is_bytes = name.ends_with("_bytes") || name == "locked_memory" ||
                        name == "address_space" || name == "file_size";
  if (is_bytes && value.get<double>() < 0) return "not known";
  return is_bytes ? bytes_text(value.get<double>()) : value.dump();
}

std::string spaced(std::string name) {
  if (name.ends_with("_bytes")) name.resize(name.size() - std::string_view("_bytes").size());
  for (char& c : name) {
    if (c == '_') c = ' ';
  }
  return name;
}

void print(const Object& facts) {
  for (const auto& [section, values] : facts.items()) {
    if (!values.is_object()) continue;
    std::cout << spaced(section) << '\n';
    for (const auto& [name, value] : values.items()) {
      const std::string shown = spaced(name);
      std::cout << "  " << shown << std::string(shown.size() < 20 ? 20 - shown.size() : 1, ' ')
                << value_text(name, value) << '\n';
    }
  }
  for (const Object& problem : facts.at("problems")) {
    std::cout << "problem: " << problem.get<std::string>() << '\n';
  }
  if (facts.at("problems").empty()) std::cout << "no problems found\n";
}

Object all_facts() {
  Object facts = {{"cleave", {{"version", version()}}}};
  facts["cleave"].update(library_facts());
  facts.update(machine_facts());
  std::vector<std::string> problems = machine_problems(facts);
  if (const Object& cleave = facts["cleave"]; !cleave.contains("libtorch_path")) {
    problems.push_back("most commands cannot run: " + cleave["libcleave"].get<std::string>());
  }
  facts["problems"] = problems;
  return facts;
}

}  // namespace

Command doctor_command() {
  return {.name = "doctor",
          .summary = "report what this machine and this build support, and problems",
          .usage = "[--exit-codes | --flight FILE] [--json]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<Options>();
            flags.add({&options->exit_codes, "exit-codes", "", "only list the exit codes", "off"});
            flags.add({&options->flight, "flight", "FILE",
                       "only report a flight log: the ranks that others wait for, and each rank's "
                       "last operations",
                       "none"});
            flags.add({&options->json, "json", "", "print one JSON object", "off"});
            flags.exclusive({"exit-codes", "flight"});
            return [options] {
              if (!options->flight.empty()) {
                print_flight_log(options->flight, options->json);
                return 0;
              }
              if (options->exit_codes) {
                print_exit_codes(options->json);
                return 0;
              }
              const Object facts = all_facts();
              if (options->json) {
                std::cout << facts.dump() << '\n';
              } else {
                print(facts);
              }
              return 0;
            };
          }};
}

}  // namespace cleave::cli
