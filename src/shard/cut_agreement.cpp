// SPDX-License-Identifier: Apache-2.0
#include "shard/cut_agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "plan/cut_cover.h"
#include "shard/rank_texts.h"

namespace sherd {
namespace {

using CutRanges = std::vector<IndexRange>;

/// The first rank of this rank's line.
int64_t first_of_line(const Mesh& mesh, const DataAxes& axes) {
  const int64_t rank = mesh.world().rank();
  int64_t first = rank;
  for (const auto& axis : {axes.inner, axes.outer}) {
    if (!axis.empty()) first += mesh.ranks(axis).front() - rank;
  }
  return first;
}

/// Parameters of one mesh that are cut.
struct CutMesh {
  GroupTraits traits;
  std::vector<size_t> members;  ///< numbers of the parameters

  bool is_of(const GroupTraits& other) const {
    const auto same = [&](const std::string& one, const std::string& another) {
      return one.empty() == another.empty() &&
             (one.empty() || &traits.mesh.communicator(one) == &other.mesh.communicator(another));
    };
    return same(traits.axes.inner, other.axes.inner) && same(traits.axes.outer, other.axes.outer);
  }
};

/// A parameter of the model.
struct CutMember {
  std::string unit;  ///< name of its unit
  std::string name;
  const Group* group = nullptr;
  size_t index = 0;
  std::optional<size_t> mesh{};  ///< index among the meshes of cuts; none: it is no part

  const std::optional<Cut>& cut() const { return group->layout().cut(index); }
};

/// The ranges of one mesh's parameters, as bytes.
std::string to_bytes(const std::vector<const CutRanges*>& all) {
  std::string bytes;
  const auto add = [&](int64_t number) {
    bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
  };
  for (const auto* ranges : all) {
    add(std::ssize(*ranges));
    for (const auto& range : *ranges) {
      add(range.begin);
      add(range.end);
    }
  }
  return bytes;
}

std::vector<CutRanges> from_bytes(const std::string& bytes, size_t parameters) {
  size_t at = 0;
  const auto next = [&] {
    int64_t number = 0;
    TORCH_INTERNAL_ASSERT(at + sizeof(number) <= bytes.size());
    std::memcpy(&number, bytes.data() + at, sizeof(number));
    at += sizeof(number);
    return number;
  };
  std::vector<CutRanges> result(parameters);
  for (auto& ranges : result) {
    ranges.resize(static_cast<size_t>(next()));
    for (auto& range : ranges) {
      range.begin = next();
      range.end = next();
    }
  }
  return result;
}

class CutAgreement {
 public:
  explicit CutAgreement(const std::vector<Unit*>& units)
      : root_(*units.back()), world_(root_.mesh().world()) {
    for (const auto* unit : units) {
      const auto path = unit == &root_ ? "" : unit->name() + ".";
      for (const auto& group : unit->groups()) {
        for (size_t i = 0; i < group->size(); ++i) {
          add({unit->name(), path + group->name(i), group.get(), i});
        }
      }
    }
  }

  void run() {
    const bool alone = world_.launcher() == Launcher::emulated || world_.device().is_meta();
    if (!alone) require_same_parameters();
    check_meshes();
    if (alone || meshes_.empty()) return;
    gather_lines();
    for (size_t mesh = 0; mesh < meshes_.size(); ++mesh) agree_on_mesh(mesh);
  }

 private:
  void add(CutMember member) {
    const auto& traits = member.group->traits();
    if (member.cut()) {
      size_t mesh = 0;
      while (mesh < meshes_.size() && !meshes_[mesh].is_of(traits)) ++mesh;
      if (mesh == meshes_.size()) meshes_.push_back({traits, {}});
      meshes_[mesh].members.push_back(members_.size());
      member.mesh = mesh;
    }
    members_.push_back(std::move(member));
  }

  /// Returns what must be the same on all ranks, one line for each parameter.
  std::string facts() const {
    std::string text = c10::str("the root lies on ", data_ranks(root_), " ranks");
    for (const auto& member : members_) {
      const auto& traits = member.group->traits();
      text += c10::str(
          "\nunit '", member.unit, "' has '", member.name, "' of ",
          c10::IntArrayRef(member.group->layout().whole_shape(member.index)));
      if (const auto& cut = member.cut()) {
        text += c10::str(
            ", cut along dim ", cut->dim, " into parts of ", c10::IntArrayRef(part_shape(*cut)));
      }
      text += c10::str(", on ", traits.ranks(), " ranks");
      if (member.mesh) text += c10::str(" of mesh ", *member.mesh);
    }
    return text;
  }

  void require_same_parameters() const {
    const auto sides = differing_texts(world_.communicator(), world_.device(), facts());
    if (!sides) return;
    const auto& [one, other] = *sides;
    const auto number = differing_line(one.text, other.text);
    TORCH_CHECK(
        false, "[shard.agree] rank ", one.rank, " and rank ", other.rank,
        " do not have the same parameters. Rank ", one.rank, ": ", line_of(one.text, number),
        ". Rank ", other.rank, ": ", line_of(other.text, number),
        ". All ranks must shard the same units in the same order, over meshes that they made "
        "alike, with the same whole shapes and parts of the same size in ParameterRule::cut");
  }

  static int64_t data_ranks(const Unit& unit) {
    const auto& axes = unit.axes();
    return unit.mesh().size(axes.inner) * (axes.outer.empty() ? 1 : unit.mesh().size(axes.outer));
  }

  void check_meshes() const {
    TORCH_CHECK_VALUE(
        data_ranks(root_) == world_.size(), "[shard] the mesh of the root '", root_.name(),
        "' has ", data_ranks(root_), " of the world's ", world_.size(),
        " ranks, but gradients are divided by the number of all ranks: give the root a mesh of all "
        "of them (Mesh::flatten), and a smaller one to parameters that are cut "
        "(ParameterRule::mesh)");
    for (const auto& member : members_) {
      const int64_t ranks = member.group->traits().ranks();
      TORCH_CHECK_VALUE(
          member.mesh || ranks == world_.size(), "[shard] parameter '", member.name, "' lies on ",
          ranks, " of the world's ", world_.size(),
          " ranks, and what the others hold is not known: say in ParameterRule::cut which part of "
          "the whole parameter this rank has, or give it a mesh of all ranks");
    }
  }

  /// Exchanges, for each mesh, the first rank of this rank's line and a hash of its ranges.
  void gather_lines() {
    const auto fields = std::ssize(meshes_) * 2;
    auto mine = at::empty({fields}, at::kLong);
    auto* numbers = mine.mutable_data_ptr<int64_t>();
    for (const auto& mesh : meshes_) {
      mine_.push_back(to_bytes(ranges_of(mesh)));
      *numbers++ = first_of_line(mesh.traits.mesh, mesh.traits.axes);
      *numbers++ = hash_of(mine_.back());
    }
    const auto device = world_.device();
    auto all = at::empty({world_.size() * fields}, at::TensorOptions(at::kLong).device(device));
    world_.communicator().all_gather(all, mine.to(device)).synchronize();
    gathered_ = all.cpu().view({world_.size(), std::ssize(meshes_), 2});
  }

  std::vector<const CutRanges*> ranges_of(const CutMesh& mesh) const {
    std::vector<const CutRanges*> result;
    for (const size_t number : mesh.members) result.push_back(&members_[number].cut()->ranges);
    return result;
  }

  /// Returns the ranges that another rank gives to the parameters of a mesh. Collective; blocks.
  std::vector<CutRanges> ranges_of_rank(size_t mesh, int64_t rank) const {
    return from_bytes(
        text_of(world_.communicator(), world_.device(), rank, mine_[mesh]),
        meshes_[mesh].members.size());
  }

  void agree_on_mesh(size_t mesh) const {
    const auto& members = meshes_[mesh].members;
    std::vector<std::vector<HeldPart>> parts(members.size());
    for (const auto& [firsts, rank] : lines_by_ranges(mesh)) {
      const auto ranges = ranges_of_rank(mesh, rank);
      for (const int64_t first : firsts) {
        for (size_t i = 0; i < members.size(); ++i) parts[i].push_back({ranges[i], first});
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      const auto& member = members_[members[i]];
      const auto& cut = *member.cut();
      const auto fault = fault_of_parts(cut.shape, cut.dim, parts[i]);
      TORCH_CHECK_VALUE(
          !fault, "[shard] parameter '", member.name, "': ", *fault, " (ParameterRule::cut)");
    }
  }

  /// Lines with the same ranges for all parameters of a mesh, and a rank of one of them.
  struct AlikeLines {
    std::vector<int64_t> firsts;
    int64_t rank = 0;
  };

  std::vector<AlikeLines> lines_by_ranges(size_t mesh) const {
    const auto rows = gathered_.accessor<int64_t, 3>();
    const auto column = static_cast<int64_t>(mesh);
    struct Line {
      int64_t rank = 0;   // one of them
      int64_t ranks = 0;  // number of them
    };
    std::map<int64_t, Line> lines;  // by first rank
    for (int64_t rank = 0; rank < world_.size(); ++rank) {
      auto& line = lines.try_emplace(rows[rank][column][0], Line{rank, 0}).first->second;
      ++line.ranks;
      if (rows[line.rank][column][1] != rows[rank][column][1]) refuse(mesh, line.rank, rank);
    }
    std::map<int64_t, AlikeLines> alike;  // by hash
    const auto& [traits, members] = meshes_[mesh];
    for (const auto& [first, line] : lines) {
      TORCH_CHECK_VALUE(
          line.ranks == traits.ranks(), "[shard] parameter '", members_[members.front()].name,
          "' lies on lines of ", traits.ranks(), " ranks, but that of rank ", first, " has ",
          line.ranks, ": make its mesh in the same way on all ranks");
      auto same = alike.try_emplace(rows[line.rank][column][1], AlikeLines{{}, line.rank});
      same.first->second.firsts.push_back(first);
    }
    std::vector<AlikeLines> result;
    for (auto& [hash, one] : alike) result.push_back(std::move(one));
    return result;
  }

  /// Two ranks of one line have different parts. Collective.
  [[noreturn]] void refuse(size_t mesh, int64_t one, int64_t other) const {
    const auto first = ranges_of_rank(mesh, one);
    const auto second = ranges_of_rank(mesh, other);
    size_t i = 0;
    while (i + 1 < first.size() && first[i] == second[i]) ++i;
    const auto& member = members_[meshes_[mesh].members[i]];
    const auto text = [&](const CutRanges& ranges) {
      return to_text(Cut{member.cut()->shape, member.cut()->dim, ranges});
    };
    TORCH_CHECK_VALUE(
        false, "[shard] parameter '", member.name, "' is ", text(first[i]), " on rank ", one,
        " and ", text(second[i]), " on rank ", other,
        ", which shard it together: all ranks along the data-parallel axes of its mesh must have "
        "the same part; correct ParameterRule::cut or its mesh");
  }

  const Unit& root_;
  World world_;
  std::vector<CutMember> members_;
  std::vector<CutMesh> meshes_;
  std::vector<std::string> mine_;  // by mesh: this rank's ranges
  at::Tensor gathered_;            // by rank, mesh and field
};

}  // namespace

void agree_on_cuts(const std::vector<Unit*>& units) {
  CutAgreement(units).run();
}

}  // namespace sherd
