#include "cleave/verify/notes.h"

namespace cleave::verifying {
namespace {

int64_t whole_bytes(const DTensor& x) {
  int64_t bytes = x.local().element_size();
  for (int64_t d = 0; d < x.dim(); ++d) bytes *= x.size(d);
  return bytes;
}

/// A door that takes a value in another layout than it comes in, by moving all of its features.
std::string repaired(const Part& part, const PartBytes& moved) {
  const DTensor& x = part.x;
  if (!x.local().is_floating_point()) return "";
  const int64_t bytes = whole_bytes(x);
  if (x.placement().is_shard(x.dim() - 1) && moved.forward.gathered >= bytes) {
    return str(part.name, " gathers its input, whose features ", x.maker(),
               " leaves split: ", moved.backward.bytes >= bytes ? 2 * bytes : bytes,
               " bytes a step; with the style rowwise it takes them split");
  }
  if (x.placement().is_replicate() && moved.backward.gathered >= bytes) {
    return str(part.name, " cuts its input, which every rank gets whole from ", x.maker(), ": ",
               bytes, " bytes a step to gather its gradient; is a key with colwise missing for ",
               x.maker(), "?");
  }
  return "";
}

std::string whole_matrices(Model& model) {
  std::string names;
  int64_t count = 0;
  int64_t bytes = 0;
  for (const auto& p : model.parameters()) {
    if (p->is_split() || p->shape().size() < 2) continue;
    bytes += static_cast<int64_t>(p->leaf().nbytes());
    if (++count <= 3) names += (count > 1 ? ", " : "") + p->name();
  }
  if (count == 0) return "";
  const std::string more = count > 3 ? str(" and ", count - 3, " more") : "";
  return str("every rank holds the whole of ", names, more, ": ", bytes,
             " bytes each; no key of the plan matches them");
}

}  // namespace

std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model) {
  std::vector<std::string> notes;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].kind != VerifiedPart::Kind::kLayer || !parts[i].is_leaf) continue;
    std::string note = repaired(parts[i], bytes[i]);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  std::string whole = whole_matrices(model);
  if (!whole.empty()) notes.push_back(std::move(whole));
  return notes;
}

}  // namespace cleave::verifying
