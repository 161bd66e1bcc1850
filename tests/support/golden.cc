#include "tests/support/golden.h"

#include <bit>
#include <cmath>
#include <cstdlib>
#include <mutex>

#include <ATen/ATen.h>

#include "cleave/base/philox.h"
#include "cleave/base/str.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/text/json.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {
namespace {

const std::string kGoldens = test::source_file("tests/golden/");

std::span<const std::byte> bytes_of_values(const at::Tensor& t) {
  return {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()};
}

/// A tensor of models/NAME.json: the parameters of golden_values().
struct Recipe {
  std::string name;
  std::vector<int64_t> shape;
  float scale = 0, offset = 0;
};

Json spec_of(const std::string& model) {
  return Json::parse_file(kGoldens + "models/" + model + ".json");
}

std::vector<Recipe> recipes_of(const Json& spec) {
  std::vector<Recipe> recipes;
  const Json list = spec.at("tensors");
  for (size_t i = 0; i < list.size(); ++i) {
    const Json item = list.at(i);
    Recipe recipe{.name = item.at(size_t{0}).as_string(), .shape = {}};
    for (size_t d = 0; d < item.at(1).size(); ++d) {
      recipe.shape.push_back(item.at(1).at(d).as_int());
    }
    recipe.scale = static_cast<float>(item.at(2).as_number());
    recipe.offset = static_cast<float>(item.at(3).as_number());
    recipes.push_back(recipe);
  }
  return recipes;
}

/// checksum_of of tests/golden/make_models.py for one tensor.
uint64_t checksum(const at::Tensor& values) {
  const auto* data = values.const_data_ptr<float>();
  uint64_t sum = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(values.numel()); ++i) {
    sum += std::bit_cast<uint32_t>(data[i]) * (2 * i + 1);
  }
  return sum;
}

void write_model(const std::string& model, const std::filesystem::path& path) {
  const Json spec = spec_of(model);
  const auto recipes = recipes_of(spec);
  const auto seed = static_cast<uint64_t>(spec.at("seed").as_int());
  std::vector<TensorInfo> tensors;
  for (const Recipe& r : recipes) tensors.push_back({r.name, DType::kF32, r.shape});
  FolderWriter folder(path);
  const auto max_file_bytes = static_cast<uint64_t>(spec.int_or("max_file_bytes", 5'000'000'000));
  const SafetensorsPlan plan(tensors, {.max_file_bytes = max_file_bytes});
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  uint64_t sum = 0;
  for (const Recipe& r : recipes) {
    const at::Tensor values = golden_values(seed, r.name, r.shape, r.scale, r.offset);
    sum += checksum(values);
    writer.write_block(r.name, {}, bytes_of_values(values));
  }
  CLEAVE_CHECK(static_cast<int64_t>(sum % (uint64_t{1} << 32)) == spec.at("checksum").as_int(),
               Code::kBug, "the weights of ", model, " are not those of tests/golden/counter.py");
  writer.finish();
  folder.write_file("config.json", spec.at("config").dump());
  folder.commit();
}

/// Splits the vector `key` of all parameters into one answer per parameter.
void split_answers(Tensors& answers, const std::string& key, const std::vector<Recipe>& recipes) {
  const at::Tensor all = answers.at(key);
  int64_t begin = 0;
  const auto take = [&](int64_t count) {
    begin += count;
    return all.narrow(0, begin - count, count);
  };
  for (const Recipe& r : recipes) {
    const std::string name = key + "." + r.name;
    if (r.shape.size() == 1) {
      answers[name] = take(r.shape[0]);
    } else {
      answers[name + ".rows"] = take(r.shape[0]).unsqueeze(1);
      answers[name + ".columns"] = take(r.shape[1]).unsqueeze(0);
    }
  }
  TORCH_CHECK(begin == all.numel(), key, " has ", all.numel(), " numbers, expected ", begin);
  answers.erase(key);
}

void widen_integers(Tensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (tensor.scalar_type() == at::kInt) tensor = tensor.to(at::kLong);
  }
}

}  // namespace

Tensors read_tensors(const std::string& path) {
  const auto file = Safetensors::open(path);
  Tensors out;
  for (const StoredTensor& t : file.tensors()) {
    at::Tensor tensor = at::empty(std::vector<int64_t>(t.shape.begin(), t.shape.end()),
                                  at::dtype(scalar_type(t.dtype)));
    file.read_block(t, {}, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    out.emplace(t.name, tensor);
  }
  return out;
}

at::Tensor slice_of(const Parameter& parameter, const at::Tensor& whole) {
  // Begins with an empty slice: a rank may hold no range.
  std::vector<at::Tensor> parts{whole.narrow(parameter.split_dim(), 0, 0)};
  for (const Range& r : parameter.ranges()) {
    parts.push_back(whole.narrow(parameter.split_dim(), r.begin, r.size()));
  }
  return at::cat(parts, parameter.split_dim());
}

void fill(Layer& model, const Tensors& whole, at::ScalarType dtype) {
  model.name_tree();
  for (const auto& p : model.parameters()) {
    if (!p->is_here()) continue;
    p->set_leaf(slice_of(*p, whole.at(p->name())).to(dtype).clone());
  }
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "shapes ", a.sizes(), " and ", b.sizes());
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

at::Tensor golden_values(uint64_t seed, const std::string& name, const std::vector<int64_t>& shape,
                         float scale, float offset) {
  const at::Tensor out = at::empty(shape, at::kFloat);
  const std::span values(out.mutable_data_ptr<float>(), static_cast<size_t>(out.numel()));
  fill_uniform(stream_key(seed, name), 0, 0, values);
  for (float& value : values) value = (value - 0.5F) * scale + offset;
  return out;
}

std::string golden_folder(const std::string& name) {
  static const TempFolder folder;
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);  // ranks are threads
  const std::filesystem::path path = folder / name;
  if (!std::filesystem::exists(path)) write_model(name, path);
  return path.string();
}

Tensors golden_answers(const std::string& name) {
  Tensors answers = read_tensors(kGoldens + "models/" + name + ".safetensors");
  widen_integers(answers);
  const auto recipes = recipes_of(spec_of(name));
  std::vector<std::string> split;
  for (const auto& [key, tensor] : answers) {
    if (key == "grad" || key.ends_with(".grad") || key.ends_with(".step3")) split.push_back(key);
  }
  for (const std::string& key : split) split_answers(answers, key, recipes);
  return answers;
}

Tensors golden_cross_entropy() {
  Tensors golden = read_tensors(kGoldens + "cross_entropy.safetensors");
  widen_integers(golden);
  for (const int64_t classes : {16, 24, 37}) {
    const std::string name = str("v", classes), big = name + "_big";
    golden[name + ".logits"] = golden_values(11, name, {2, 4, classes}, 7, 0);
    golden[big + ".logits"] = golden_values(11, big, {2, 4, classes}, 140, 300);
  }
  return golden;
}

at::Tensor golden_directions(int64_t count) {
  const at::Tensor x = golden_values(0, "projection", {count}, 2, 0).to(at::kDouble);
  return at::where(x.lt(0), x - 0.5, x + 0.5) / std::sqrt(static_cast<double>(count));
}

double golden_difference(const Tensors& golden, const std::string& prefix,
                         const Parameter& parameter, const at::Tensor& slice) {
  const std::string name = prefix + "." + parameter.name();
  if (const auto vector = golden.find(name); vector != golden.end()) {
    return largest_difference(slice, slice_of(parameter, vector->second));
  }
  const at::Tensor values = slice.detach().to(at::kDouble);
  const bool whole = values.sizes() == at::IntArrayRef(parameter.shape());
  double largest = 0;
  if (whole || parameter.split_dim() == 0) {
    const at::Tensor want = golden.at(name + ".rows");
    const at::Tensor got = values.matmul(golden_directions(values.size(1)).unsqueeze(1));
    largest = largest_difference(got, whole ? want : slice_of(parameter, want));
  }
  if (whole || parameter.split_dim() == 1) {
    const at::Tensor want = golden.at(name + ".columns");
    const at::Tensor got = golden_directions(values.size(0)).unsqueeze(0).matmul(values);
    const double other = largest_difference(got, whole ? want : slice_of(parameter, want));
    if (!std::isnan(largest) && !(other <= largest)) largest = other;  // NaN stays
  }
  return largest;
}

std::string data_folder() {
  const char* folder = std::getenv("CLEAVE_DATA");
  return folder == nullptr ? "" : folder;
}

}  // namespace cleave::test
