#include "cleave/mesh/consistency.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/base/error.h"
#include "cleave/base/hash.h"
#include "cleave/text/json.h"
#include "cleave/text/utf8.h"

namespace cleave::inline mesh {
namespace {

constexpr const char* kSite = "config fingerprint";

/// [["--lr", "0.1"], ...]. Values may hold any bytes; non-UTF-8 ones are replaced by a checksum.
std::string text_of(const ConfigFingerprint& config) {
  auto pairs = nlohmann::json::array();
  for (const auto& [name, value] : config) {
    const bool is_text = first_bad_utf8(value) == value.size();
    pairs.push_back({name, is_text ? value : "checksum " + to_hex(hash_bytes(value))});
  }
  return pairs.dump();
}

ConfigFingerprint fingerprint_of(const std::string& text) {
  const Json pairs = Json::parse(text, kSite);
  ConfigFingerprint config;
  for (size_t i = 0; i < pairs.size(); ++i) {
    config.emplace_back(pairs.at(i).at(size_t{0}).as_string(), pairs.at(i).at(1).as_string());
  }
  return config;
}

/// Rank 0's text, on all ranks.
std::string first_text(std::string own, const Axis& everyone) {
  Tensor size = at::scalar_tensor(static_cast<int64_t>(own.size()), at::kLong).view({1});
  everyone.broadcast_(size, 0, kSite);
  own.resize(static_cast<size_t>(size.item<int64_t>()));
  Tensor bytes = at::from_blob(own.data(), {std::ssize(own)}, at::kByte);
  everyone.broadcast_(bytes, 0, kSite);
  return own;
}

std::string value_of(const ConfigFingerprint& config, const std::string& name) {
  const auto at = std::find_if(config.begin(), config.end(),
                               [&](const auto& each) { return each.first == name; });
  return at == config.end() ? "none" : at->second;
}

/// "--lr 0.1, rank 0 0.2"
std::string first_difference(const ConfigFingerprint& mine, const ConfigFingerprint& first) {
  for (const ConfigFingerprint* config : {&mine, &first}) {
    for (const auto& [name, value] : *config) {
      const std::string here = value_of(mine, name), there = value_of(first, name);
      if (here != there) return str(name, ' ', here, ", rank 0 ", there);
    }
  }
  CLEAVE_BUG("fingerprint texts differ, but no value does");
}

}  // namespace

void check_consistent(const ConfigFingerprint& config, const Axis& everyone) {
  if (everyone.size() == 1) return;
  const std::string text = text_of(config);
  const Tensor hash =
      at::scalar_tensor(static_cast<int64_t>(hash_bytes(text)), at::kLong).view({1});
  const std::vector<int64_t> one_each(static_cast<size_t>(everyone.size()), 1);
  const Tensor all = everyone.all_gather(hash, 0, one_each, kSite);
  if (all.eq(all[0]).all().item<bool>()) return;
  const std::string first = first_text(text, everyone);
  // Only one rank throws, so that all ranks report the same error.
  const auto other = all.ne(all[0]).nonzero()[0].item<int64_t>();
  CLEAVE_CHECK(everyone.rank() != other, Code::kShape, "rank ", other, " has ",
               first_difference(fingerprint_of(text), fingerprint_of(first)),
               "; start all ranks of a job with the same options on the same files");
  everyone.barrier(kSite);
}

}  // namespace cleave::inline mesh
