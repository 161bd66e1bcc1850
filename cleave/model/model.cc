#include "cleave/model/model.h"

namespace cleave {

DTensor Model::forward(const DTensor& ids, const Context& context) {
  DTensor x = ids;
  for (Layer* layer : sequence()) x = (*layer)(x, context);
  return x;
}

}  // namespace cleave
