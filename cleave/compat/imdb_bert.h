#pragma once
#include <memory>

#include "cleave/model/model.h"

namespace cleave {

/// The simplified BERT classifier of a course's notebook, without memory, from its config.json
/// (model_type "imdb_bert"): no positions, linear layers without bias, pre-norm blocks, the mean
/// over real tokens, a head of two matrices. The embedding is sharded along the hidden dimension.
///
///   ids [B, T] int64   result [B, C]
std::unique_ptr<Model> make_imdb_bert(const Json& config);

}  // namespace cleave
