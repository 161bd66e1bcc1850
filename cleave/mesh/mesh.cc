#include "cleave/mesh/mesh.h"

#include <algorithm>
#include <numeric>

namespace cleave::inline mesh {
namespace {

int product(const std::vector<MeshDim>& dims) {
  int n = 1;
  for (const MeshDim& d : dims) n *= d.size;
  return n;
}

std::string names_of(const std::vector<MeshDim>& dims) {
  std::string out;
  for (const MeshDim& d : dims) out += (out.empty() ? "" : ", ") + d.name;
  return out;
}

/// All groups along dimension `which` of ranks laid out row-major over `dims`.
std::vector<std::vector<int>> groups_along(const std::vector<MeshDim>& dims,
                                           const std::vector<int>& ranks, size_t which) {
  int stride = 1;
  for (size_t d = which + 1; d < dims.size(); ++d) stride *= dims[d].size;
  const int size = dims[which].size;
  std::vector<std::vector<int>> out;
  for (int i = 0; i < static_cast<int>(ranks.size()); ++i) {
    if (i / stride % size != 0) continue;
    std::vector<int> group(static_cast<size_t>(size));
    auto at = static_cast<size_t>(i);
    for (int& rank : group) {
      rank = ranks[at];
      at += static_cast<size_t>(stride);
    }
    out.push_back(std::move(group));
  }
  return out;
}

}  // namespace

Mesh Mesh::build(World& world, const std::vector<MeshDim>& dims) {
  for (size_t i = 0; i < dims.size(); ++i) {
    CLEAVE_CHECK(dims[i].size >= 1, Code::kUsage, dims[i].name, "=", dims[i].size,
                 "; a mesh dimension has at least 1 rank");
    for (size_t j = 0; j < i; ++j) {
      CLEAVE_CHECK(dims[i].name != dims[j].name, Code::kUsage, "mesh dimension '", dims[i].name,
                   "' is named twice");
    }
  }
  Mesh mesh;
  mesh.dims_ = dims;
  CLEAVE_CHECK(product(dims) == world.size(), Code::kShape, "a mesh of ", mesh.describe(),
               " needs ", product(dims), " ranks; the world has ", world.size());
  mesh.ranks_.resize(static_cast<size_t>(world.size()));
  std::iota(mesh.ranks_.begin(), mesh.ranks_.end(), 0);
  for (size_t d = 0; d < dims.size(); ++d) {
    for (const auto& group : groups_along(dims, mesh.ranks_, d)) {
      if (std::find(group.begin(), group.end(), world.rank()) != group.end()) {
        mesh.axes_.emplace_back(world.group(group, dims[d].name));
      }
    }
  }
  return mesh;
}

Mesh Mesh::single(const std::vector<std::string>& names) {
  Mesh mesh;
  for (const std::string& name : names) mesh.dims_.push_back({.name = name, .size = 1});
  mesh.ranks_ = {0};
  mesh.axes_.resize(names.size());
  return mesh;
}

size_t Mesh::index(const std::string& name) const {
  for (size_t d = 0; d < dims_.size(); ++d) {
    if (dims_[d].name == name) return d;
  }
  throw Error(Code::kUsage,
              str("the mesh has no axis '", name, "'; it has ", names_of(dims_),
                  "; name it where the mesh is built: Mesh::build(world, {{\"", name, "\", N}})"));
}

const Axis& Mesh::operator[](const std::string& name) const& {
  return axes_[index(name)];
}

Mesh Mesh::slice(const std::vector<std::string>& names) const {
  std::vector<size_t> keep(names.size());
  std::transform(names.begin(), names.end(), keep.begin(),
                 [&](const std::string& name) { return index(name); });
  CLEAVE_CHECK(std::is_sorted(keep.begin(), keep.end()) &&
                   std::adjacent_find(keep.begin(), keep.end()) == keep.end(),
               Code::kUsage,
               "give each axis of a sub-mesh once and in mesh order: ", names_of(dims_));
  const std::vector<int> mine = coordinate();
  Mesh sub;
  for (const size_t d : keep) {
    sub.dims_.push_back(dims_[d]);
    sub.axes_.push_back(axes_[d]);
  }
  for (size_t i = 0; i < ranks_.size(); ++i) {
    auto rest = static_cast<int>(i);
    bool shares = true;
    for (size_t d = dims_.size(); d-- > 0; rest /= dims_[d].size) {
      const bool kept = std::find(keep.begin(), keep.end(), d) != keep.end();
      shares = shares && (kept || rest % dims_[d].size == mine[d]);
    }
    if (shares) sub.ranks_.push_back(ranks_[i]);
  }
  return sub;
}

Axis Mesh::flatten(World& world, const std::vector<std::string>& names,
                   const std::string& name) const {
  const std::vector<int> ranks = slice(names).ranks_;
  return ranks.size() == 1 ? Axis() : Axis(world.group(ranks, name));
}

Mesh init_device_mesh(World& world, const std::vector<int>& mesh_shape,
                      const std::vector<std::string>& mesh_dim_names) {
  CLEAVE_CHECK(mesh_shape.size() == mesh_dim_names.size(), Code::kUsage, "init_device_mesh got ",
               mesh_shape.size(), " sizes and ", mesh_dim_names.size(),
               " names; give one size and one name per dimension");
  std::vector<MeshDim> dims;
  for (size_t d = 0; d < mesh_shape.size(); ++d) {
    dims.push_back({.name = mesh_dim_names[d], .size = mesh_shape[d]});
  }
  return Mesh::build(world, dims);
}

std::vector<std::vector<int>> Mesh::groups(const std::string& name) const {
  return groups_along(dims_, ranks_, index(name));
}

int Mesh::size() const {
  return product(dims_);
}

std::vector<int> Mesh::coordinate() const {
  std::vector<int> out;
  for (const Axis& axis : axes_) out.push_back(axis.rank());
  return out;
}

std::string Mesh::describe() const {
  std::string out;
  for (const MeshDim& d : dims_) out += (out.empty() ? "" : " x ") + str(d.name, "=", d.size);
  return out;
}

}  // namespace cleave::inline mesh
