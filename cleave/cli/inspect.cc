#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cleave/base/byte_count.h"
#include "cleave/base/byte_progress.h"
#include "cleave/base/dtype.h"
#include "cleave/base/error.h"
#include "cleave/base/progress.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/inspection.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"
#include "cleave/format/tensor_source.h"

namespace cleave::cli {
namespace {

using Object = nlohmann::ordered_json;

struct Options {
  std::string path;
  bool verify = false;
  bool json = false;
};

int64_t bytes_of(const std::vector<InspectedTensor>& tensors) {
  uint64_t bytes = 0;
  for (const InspectedTensor& tensor : tensors) bytes += tensor.bytes;
  return static_cast<int64_t>(bytes);
}

std::string padded(const std::string& text, size_t width) {
  return text + std::string(text.size() < width ? width - text.size() : 0, ' ') + "  ";
}

// The JSON reader has checked depth and names; this only converts the type.
Object converted(const Json& value) {
  switch (value.type()) {
    case Json::Type::kNull:
      return nullptr;
    case Json::Type::kBool:
      return value.as_bool();
    case Json::Type::kNumber:
      return value.is_int() ? Object(value.as_int()) : Object(value.as_number());
    case Json::Type::kString:
      return value.as_string();
    default:
      break;
  }
  Object result = value.is(Json::Type::kArray) ? Object::array() : Object::object();
  for (size_t i = 0; i < value.size(); ++i) {
    if (value.is(Json::Type::kArray)) {
      result.push_back(converted(value.at(i)));
    } else {
      result[value.key(i)] = converted(value.at(i));
    }
  }
  return result;
}

Object tensor_rows(const std::vector<InspectedTensor>& tensors) {
  Object rows = Object::array();
  for (const InspectedTensor& tensor : tensors) {
    rows.push_back({{"name", tensor.name},
                    {"dtype", tensor.type},
                    {"shape", tensor.shape},
                    {"bytes", tensor.bytes}});
  }
  return rows;
}

/// The values of a GGUF file's metadata; arrays as their lengths.
Object metadata_object(const GgufMetadata& metadata) {
  Object object = Object::object();
  for (const auto& [key, value] : metadata.entries()) {
    if (const auto* flag = std::get_if<bool>(&value.value)) {
      object[key] = *flag;
    } else if (const auto* number = std::get_if<int64_t>(&value.value)) {
      object[key] = *number;
    } else if (const auto* real = std::get_if<double>(&value.value)) {
      object[key] = *real;
    } else {
      object[key] = value.text();
    }
  }
  return object;
}

Object as_json(const Inspection& found) {
  Object object = {{"path", found.path.string()}, {"kind", found.kind}};
  if (!found.run_checkpoints.empty()) object["run_checkpoints"] = found.run_checkpoints;
  if (found.step) object["step"] = *found.step;
  object["parameters"] = found.num_parameters();
  object["bytes"] = bytes_of(found.tensors);
  object["files"] = found.tensor_files;
  if (const auto sizes = found.tp_sizes()) {
    object["split"] = {{"max_tp", sizes->max_tp},
                       {"even_tp", sizes->even_tp},
                       {"heads", sizes->num_heads},
                       {"kv_heads", sizes->num_kv_heads}};
  }
  if (found.config) object["config"] = converted(*found.config);
  if (found.metadata) object["metadata"] = metadata_object(*found.metadata);
  object["tensors"] = tensor_rows(found.tensors);
  if (!found.optimizer.empty()) object["optimizer"] = tensor_rows(found.optimizer);
  return object;
}

void print_head(const Inspection& found) {
  std::cout << found.path.string() << ": " << found.kind;
  if (found.step) std::cout << " of step " << *found.step;
  std::cout << "\n  parameters  " << found.num_parameters() << " ("
            << count_text(static_cast<double>(found.num_parameters())) << "), "
            << bytes_text(bytes_of(found.tensors)) << " in "
            << counted(found.tensor_files.size(), "file") << '\n';
  if (!found.optimizer.empty()) {
    std::cout << "  optimizer   " << counted(found.optimizer.size(), "tensor") << ", "
              << bytes_text(bytes_of(found.optimizer)) << '\n';
  }
  if (!found.run_checkpoints.empty()) {
    std::cout << "  run         " << counted(found.run_checkpoints.size(), "checkpoint") << ':';
    for (const std::string& name : found.run_checkpoints) std::cout << ' ' << name;
    std::cout << '\n';
  }
}

void print_tp_sizes(const TpSizes& sizes) {
  std::cout << "  shards      tp 1 to " << sizes.max_tp << " (" << counted(sizes.num_heads, "head")
            << "), evenly at " << list_text(sizes.even_tp);
  if (sizes.num_kv_heads < sizes.num_heads) {
    std::cout << "; above tp " << sizes.num_kv_heads << ", ranks share the " << sizes.num_kv_heads
              << " key/value heads";
  }
  std::cout << '\n';
}

void print_config(const Json& config) {
  std::cout << "config\n";
  size_t widest = 0;
  for (size_t i = 0; i < config.size(); ++i) widest = std::max(widest, config.key(i).size());
  for (size_t i = 0; i < config.size(); ++i) {
    std::cout << "  " << padded(config.key(i), widest) << config.at(i).dump() << '\n';
  }
}

void print_metadata(const GgufMetadata& metadata) {
  constexpr size_t kShown = 60;
  std::cout << "metadata (" << metadata.entries().size() << ")\n";
  size_t widest = 0;
  for (const auto& [key, value] : metadata.entries()) widest = std::max(widest, key.size());
  for (const auto& [key, value] : metadata.entries()) {
    const std::string quoted = Object(value.text()).dump(-1, ' ', true);  // one line of ASCII
    const std::string text = quoted.substr(1, quoted.size() - 2);
    std::cout << "  " << padded(key, widest)
              << (text.size() > kShown ? text.substr(0, kShown) + "..." : text) << '\n';
  }
}

void print_tensors(const std::vector<InspectedTensor>& tensors) {
  size_t name_width = 0;
  size_t shape_width = 0;
  for (const InspectedTensor& tensor : tensors) {
    name_width = std::max(name_width, tensor.name.size());
    shape_width = std::max(shape_width, shape_text(tensor.shape).size());
  }
  std::cout << "tensors (" << tensors.size() << ")\n";
  for (const InspectedTensor& tensor : tensors) {
    std::cout << "  " << padded(tensor.name, name_width) << padded(tensor.type, 4)
              << padded(shape_text(tensor.shape), shape_width) << bytes_text(tensor.bytes) << '\n';
  }
}

void print(const Inspection& found) {
  print_head(found);
  if (const auto sizes = found.tp_sizes()) print_tp_sizes(*sizes);
  if (found.config) print_config(*found.config);
  if (found.metadata) print_metadata(*found.metadata);
  print_tensors(found.tensors);
}

// Reads every byte; throws an error that lists the first problems.
void verify(const Inspection& found) {
  CLEAVE_CHECK(
      found.has_manifest, Code::kIo, found.path.string(),
      ": has no manifest.json to verify with; only checkpoints written by cleave have one");
  require_intact(found.path, {.on_bytes = terminal_progress("verified MiB")});
}

int run(const Options& options) {
  CLEAVE_CHECK(!options.path.empty(), Code::kUsage, "no PATH given; see cleave inspect --help");
  const std::string path = local_model(options.path).string();
  std::error_code unknown;
  const bool is_there =
      std::filesystem::status(path, unknown).type() != std::filesystem::file_type::not_found;
  CLEAVE_CHECK(is_there || path.find('/') != std::string::npos, Code::kIo, path,
               ": no such file or folder; a preset has no files: train it with cleave train "
               "--model NAME --out DIR, then give DIR");
  require_checkpoint(path);
  const Inspection found = inspect(path);
  if (options.verify) verify(found);
  if (options.json) {
    Object object = as_json(found);
    if (options.verify) object["verified"] = true;
    std::cout << object.dump(-1, ' ', false, Object::error_handler_t::replace) << '\n';
    return 0;
  }
  print(found);
  if (options.verify) std::cout << "all files match the manifest\n";
  return 0;
}

}  // namespace

Command inspect_command() {
  return {.name = "inspect",
          .summary = "show the contents of a model file, model folder, checkpoint or run",
          .usage = "PATH [--verify] [--json]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<Options>();
            flags.positional(
                &options->path,
                {"path", "PATH",
                 "safetensors, .bin or GGUF file, model or run folder, or ORG/NAME of the Hugging "
                 "Face cache"});
            flags.add({&options->verify, "verify", "", "also check every byte against the manifest",
                       "off"});
            flags.add({&options->json, "json", "", "print one JSON object", "off"});
            return [options] { return run(*options); };
          }};
}

}  // namespace cleave::cli
