#include "cleave/mesh/place.h"

#include "cleave/base/str.h"

namespace cleave::inline mesh {

std::string place_text(const Mesh& mesh, int64_t rank) {
  std::string text;
  int64_t rest = rank;
  for (size_t i = mesh.dims().size(); i-- > 0;) {
    const MeshDim& d = mesh.dims()[i];
    if (d.size > 1 || i + 2 >= mesh.dims().size()) {
      text = str(d.name, " ", rest % d.size, text.empty() ? "" : ", ", text);
    }
    rest /= d.size;
  }
  return str("rank ", rank, " (", text, ")");
}

}  // namespace cleave::inline mesh
