#pragma once
#include <string>
#include <vector>

#include "cleave/format/tensor_source.h"

/// Lists the whole tensors of a folder with the files of a job's ranks (shard_files.h), and the
/// names of these files; nothing if it has none. The front end looks it up in libcleave by this
/// name. Throws as find_shard_files and ShardedTensors do.
extern "C" void cleave_joined_tensors(const std::string& folder,
                                      std::vector<cleave::TensorInfo>& tensors,
                                      std::vector<std::string>& files);
