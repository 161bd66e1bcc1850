#include "cleave/report/record.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cleave/base/error.h"
#include "cleave/file/atomic_write.h"
#include "cleave/text/json.h"

namespace cleave::inline report {
namespace {

namespace fs = std::filesystem;
using Object = nlohmann::ordered_json;

std::string path_of(const std::string& run) {
  return (fs::path(run) / kRecordName).string();
}

template <class Value>
Object object_of(const std::vector<std::pair<std::string, Value>>& values) {
  Object object = Object::object();
  for (const auto& [name, value] : values) object[name] = value;
  return object;
}

// The members of an object, each converted by `read`; none if the object is missing.
template <class Value, class Read>
std::vector<std::pair<std::string, Value>> members(const Json& record, std::string_view key,
                                                   Read read) {
  std::vector<std::pair<std::string, Value>> values;
  if (!record.has(key)) return values;
  const Json object = record.at(key);
  if (!object.is(Json::Type::kObject)) object.fail("expected an object");
  for (size_t i = 0; i < object.size(); ++i) {
    values.emplace_back(object.key(i), read(object.at(object.key(i))));
  }
  return values;
}

NamesAndSeconds seconds_of(const Json& record, std::string_view key) {
  return members<double>(record, key, [](const Json& value) { return value.as_number(0); });
}

std::vector<RankMemory> memory_of(const Json& record) {
  std::vector<RankMemory> memory;
  const Json ranks = record.at("memory");
  if (!ranks.is(Json::Type::kArray)) ranks.fail("expected an array");
  for (size_t i = 0; i < ranks.size(); ++i) {
    const Json rank = ranks.at(i);
    memory.push_back(
        {.rank = rank.at("rank").as_string(),
         .bytes = members<int64_t>(rank, "bytes", [](const Json& v) { return v.as_int(0); }),
         .forecast = rank.int_or("forecast", 0, 0)});
    if (memory.back().bytes.size() != memory.front().bytes.size()) {
      rank.fail("expected as many kinds of tensors as the first rank has");
    }
  }
  return memory;
}

}  // namespace

void write_record(const std::string& run, const RunRecord& r) {
  Object memory = Object::array();
  for (const RankMemory& rank : r.memory) {
    memory.push_back(
        {{"rank", rank.rank}, {"bytes", object_of(rank.bytes)}, {"forecast", rank.forecast}});
  }
  const Object object = {{"title", r.title},
                         {"outcome", r.outcome},
                         {"num_steps", r.num_steps},
                         {"first_step", r.first_step},
                         {"wall_s", r.wall_s},
                         {"settings", object_of(r.settings)},
                         {"memory", memory},
                         {"other_time", object_of(r.other_time)},
                         {"step_time", object_of(r.step_time)},
                         {"step_forecast", object_of(r.step_forecast)}};
  // Paths and the command line may hold bytes that are not UTF-8.
  const std::string text = object.dump(2, ' ', false, Object::error_handler_t::replace);
  write_atomic(path_of(run), std::string_view(text + '\n'));
}

RunRecord read_record(const std::string& run) {
  const std::string path = path_of(run);
  std::error_code problem;
  CLEAVE_CHECK(fs::exists(run, problem), Code::kIo, run, ": no such folder");
  CLEAVE_CHECK(fs::exists(path, problem), Code::kIo, run, ": is not a run: it has no ", kRecordName,
               "; give the --out folder of a cleave train");
  const Json json = Json::parse_file(path);
  return {.title = json.at("title").as_string(),
          .outcome = json.at("outcome").as_string(),
          .num_steps = json.at("num_steps").as_int(0),
          .first_step = json.at("first_step").as_int(1),
          .wall_s = json.at("wall_s").as_number(0),
          .settings = members<std::string>(json, "settings",
                                           [](const Json& value) { return value.as_string(); }),
          .memory = memory_of(json),
          .other_time = seconds_of(json, "other_time"),
          .step_time = seconds_of(json, "step_time"),
          .step_forecast = seconds_of(json, "step_forecast")};
}

}  // namespace cleave::inline report
