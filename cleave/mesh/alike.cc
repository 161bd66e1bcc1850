#include "cleave/mesh/alike.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"

namespace cleave {
namespace {

constexpr const char* kSite = "what the ranks were told";
constexpr char kEnd = '\n';  // of a name or a value

std::string text_of(const Told& told) {
  std::string text;
  for (const auto& [name, value] : told) {
    text.append(name).append(1, kEnd).append(value).append(1, kEnd);
  }
  return text;
}

Told told_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find(kEnd, begin);
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  Told told;
  for (size_t i = 0; i + 1 < parts.size(); i += 2) told.emplace_back(parts[i], parts[i + 1]);
  return told;
}

/// The text of rank 0, on all.
std::string first_text(std::string own, const Axis& everyone) {
  Tensor size = at::scalar_tensor(static_cast<int64_t>(own.size()), at::kLong).view({1});
  everyone.broadcast_(size, 0, kSite);
  own.resize(static_cast<size_t>(size.item<int64_t>()));
  Tensor bytes = at::from_blob(own.data(), {std::ssize(own)}, at::kByte);
  everyone.broadcast_(bytes, 0, kSite);
  return own;
}

std::string value_of(const Told& told, const std::string& name) {
  const auto at =
      std::find_if(told.begin(), told.end(), [&](const auto& each) { return each.first == name; });
  return at == told.end() ? "none" : at->second;
}

/// "--lr 0.1, rank 0 0.2"
std::string first_difference(const Told& mine, const Told& first) {
  for (const Told* told : {&mine, &first}) {
    for (const auto& [name, value] : *told) {
      const std::string here = value_of(mine, name), there = value_of(first, name);
      if (here != there) return str(name, ' ', here, ", rank 0 ", there);
    }
  }
  CLEAVE_BUG("texts differ, and what they say does not");
}

}  // namespace

void require_alike(const Told& told, const Axis& everyone) {
  if (everyone.size() == 1) return;
  const std::string text = text_of(told);
  const Tensor hash =
      at::scalar_tensor(static_cast<int64_t>(hash_bytes(text)), at::kLong).view({1});
  const std::vector<int64_t> one_each(static_cast<size_t>(everyone.size()), 1);
  const Tensor all = everyone.all_gather(hash, 0, one_each, kSite);
  if (all.eq(all[0]).all().item<bool>()) return;
  const std::string first = first_text(text, everyone);
  // One rank tells it, so that all say the same.
  const auto other = all.ne(all[0]).nonzero()[0].item<int64_t>();
  CLEAVE_CHECK(everyone.rank() != other, Code::kShape, "rank ", other, " has ",
               first_difference(told, told_of(first)),
               "; start all ranks of a job with the same options on the same files");
  everyone.barrier(kSite);
}

}  // namespace cleave
