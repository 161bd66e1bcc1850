#include "cleave/verify/part.h"

namespace cleave::verifying {
namespace {

int64_t whole_bytes(const DTensor& x) {
  int64_t bytes = x.local().element_size();
  for (int64_t d = 0; d < x.dim(); ++d) bytes *= x.size(d);
  return bytes;
}

/// A note if a layer boundary gathers or shards all features of its input; "" if not.
std::string conversion_note(const Part& part, const PartBytes& moved) {
  const DTensor& x = part.x;
  if (!x.local().is_floating_point()) return "";
  const int64_t bytes = whole_bytes(x);
  if (x.placement().is_shard(x.dim() - 1) && moved.forward.gathered >= bytes) {
    return str(part.name, " gathers its input, which ", x.maker(),
               " shards by feature: ", moved.backward.bytes >= bytes ? 2 * bytes : bytes,
               " bytes per step; the style rowwise takes it sharded");
  }
  if (x.placement().is_replicate() && moved.backward.gathered >= bytes) {
    return str(part.name, " shards its input, which ", x.maker(), " replicates: ", bytes,
               " bytes per step to gather its gradient; does the plan lack a colwise key for ",
               x.maker(), "?");
  }
  return "";
}

std::string unsharded_note(Model& model) {
  std::string names;
  int64_t count = 0;
  int64_t bytes = 0;
  for (const auto& p : model.parameters()) {
    if (p->is_split() || p->shape().size() < 2 || !p->leaf().defined()) continue;
    bytes += static_cast<int64_t>(p->leaf().nbytes());
    if (++count <= 3) names += (count > 1 ? ", " : "") + p->name();
  }
  if (count == 0) return "";
  const std::string more = count > 3 ? str(" and ", count - 3, " more") : "";
  return str("no key of the plan shards ", names, more, ": every rank holds these ", bytes,
             " bytes");
}

}  // namespace

std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind != VerifiedPart::Kind::kLayer || !parts[i].is_leaf) continue;
    std::string note = conversion_note(parts[i], bytes[i]);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  std::string whole = unsharded_note(model);
  if (!whole.empty()) notes.push_back(std::move(whole));
  return notes;
}

}  // namespace cleave::verifying
