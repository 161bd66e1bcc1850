#pragma once
#include <string>
#include <utility>
#include <vector>

#include "cleave/comm/api/world.h"
#include "cleave/mesh/axis.h"

namespace cleave::inline mesh {

/// Name and size of one dimension of a mesh.
struct MeshDim {
  std::string name;  ///< unique in the mesh, e.g. "dp", "tp"
  int size = 1;      ///< >= 1
};

/// The ranks of a world laid out in n named dimensions, row-major: the last one is contiguous.
///
/// World ranks [0, product of sizes) are in the mesh. Each rank builds its own Mesh; a group is
/// created by its members only.
class Mesh {
 public:
  /// Throws Error(kShape) when the product of the sizes is not the world size, Error(kUsage) for a
  /// duplicate name or a size below 1.
  static Mesh build(World& world, const std::vector<MeshDim>& dims);

  /// A mesh of one rank whose axes all have size 1, to run the same program without a world.
  static Mesh single(const std::vector<std::string>& names);

  /// The axis with this name. Throws Error(kUsage) listing the names.
  [[nodiscard]] const Axis& operator[](const std::string& name) const&;
  [[nodiscard]] Axis operator[](const std::string& name) && { return std::as_const(*this)[name]; }

  /// The sub-mesh of some dimensions, in mesh order: the ranks that share this rank's other
  /// coordinates.
  [[nodiscard]] Mesh slice(const std::vector<std::string>& names) const;

  /// One axis called `name` over the ranks of the sub-mesh of `names`, in mesh order: PyTorch's
  /// _flatten. `names` must be in mesh order. All ranks of the mesh must call it. Throws as slice
  /// does.
  [[nodiscard]] Axis flatten(World& world, const std::vector<std::string>& names,
                             const std::string& name) const;

  /// All groups of one axis as lists of world ranks, the same on every rank.
  [[nodiscard]] std::vector<std::vector<int>> groups(const std::string& name) const;

  [[nodiscard]] const std::vector<MeshDim>& dims() const { return dims_; }
  [[nodiscard]] int size() const;                     ///< ranks in the mesh
  [[nodiscard]] std::vector<int> coordinate() const;  ///< of this rank, one entry per dimension
  /// "dp=2 x tp=4"
  [[nodiscard]] std::string describe() const;

 private:
  [[nodiscard]] size_t index(const std::string& name) const;
  std::vector<MeshDim> dims_;
  std::vector<int> ranks_;  // world ranks, row-major over dims_
  std::vector<Axis> axes_;
};

/// Mesh::build under PyTorch's name: init_device_mesh(world, {2, 4}, {"dp", "tp"}). Also throws
/// Error(kUsage) when the numbers of names and sizes differ.
Mesh init_device_mesh(World& world, const std::vector<int>& mesh_shape,
                      const std::vector<std::string>& mesh_dim_names);

}  // namespace cleave::inline mesh
