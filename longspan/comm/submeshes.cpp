#include "longspan/comm/submeshes.h"

#include <fmt/format.h>

#include <chrono>
#include <functional>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>

#include "longspan/comm/backend.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/store.h"

namespace longspan {

Submeshes::Submeshes(GroupPlace world, const LinkTraits& link,
                     std::shared_ptr<CollectiveCounts> counts)
    : world_(std::move(world)), link_(link), counts_(std::move(counts)) {}

const Mesh& Submeshes::of(const RankRange& ranks, const ParallelPlan& plan) {
  const auto [made, is_new] = made_.try_emplace(ranks);
  if (!is_new || ranks.count == 1) return made->second;
  const std::string name = fmt::format("ranks{}to{}_", ranks.first, ranks.first + ranks.count - 1);
  GroupPlace place = world_;
  place.store = c10::make_intrusive<c10d::PrefixStore>(name, world_.store);
  place.rank = world_.rank - ranks.first;
  place.size = ranks.count;
  try {
    const auto end = std::chrono::steady_clock::now() + patience_to_meet(world_.timeout_seconds) +
                     kTimeToMeet + link_.time_to_meet;
    const auto connect = [place, plan, &link = link_, counts = counts_, name,
                          prepare_thread = link_.prepare_threads()] {
      prepare_thread();
      return make_mesh_over(place, plan, link, counts, name);
    };
    made->second = while_meeting<Mesh>(end, connect);
  } catch (const std::exception& error) {
    made_.erase(made);
    throw CommunicationError(fmt::format(
        "Rank {} could not connect to the ranks {} to {}, with which it shares a row: {}.",
        world_.rank, ranks.first, ranks.first + ranks.count - 1, link_.reason_of(error)));
  }
  return made->second;
}

void Submeshes::each(const std::function<void(const Mesh&)>& visit) const {
  for (const auto& [ranks, mesh] : made_) visit(mesh);
}

Group Submeshes::temporary(const std::string& name) const {
  GroupPlace place = world_;
  place.store = c10::make_intrusive<c10d::PrefixStore>(name, world_.store);
  const auto end = std::chrono::steady_clock::now() + patience_to_meet(world_.timeout_seconds) +
                   kTimeToMeet + link_.time_to_meet;
  const auto connect = [place, name, &link = link_, counts = counts_,
                        prepare_thread = link_.prepare_threads()] {
    prepare_thread();
    return group_over(link.make_backend(place), name, link, counts->of(name));
  };
  try {
    return while_meeting<Group>(end, connect);
  } catch (const std::exception& error) {
    throw CommunicationError(fmt::format("Rank {} could not connect to the other ranks: {}.",
                                         world_.rank, link_.reason_of(error)));
  }
}

void Submeshes::shut_down() const {
  each([](const Mesh& mesh) { longspan::shut_down(mesh); });
}

}  // namespace longspan
