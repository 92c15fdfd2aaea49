#include "longspan/comm/process_group.h"

#include <fmt/format.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "longspan/base/user_error.h"
#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

c10::intrusive_ptr<c10d::ProcessGroup> process_group_named(const std::string& name) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const std::exception&) {
    throw UserError(fmt::format(
        "there is no process group named \"{}\": call torch.distributed.init_process_group() "
        "first, and pass a group that this process belongs to",
        name));
  }
}

}  // namespace

ProcessGroupPlace place_in(const std::string& process_group) {
  const auto group = process_group_named(process_group);
  return {group->getRank(), group->getSize()};
}

Mesh mesh_of(const std::string& process_group, const std::string& purpose, const ParallelPlan& plan,
             Link link, int64_t timeout_seconds, const Rendezvous& where) {
  const auto group = process_group_named(process_group);
  if (group->getSize() == 1) return {};
  const LinkTraits& traits = traits_of(link);
  const std::chrono::seconds patience = patience_to_meet(timeout_seconds);
  const auto end = std::chrono::steady_clock::now() + patience + traits.time_to_meet;
  const std::function<void()> prepare_thread = traits.prepare_threads();
  const GroupPlace place{
      .store = c10::make_intrusive<c10d::PrefixStore>("longspan/" + purpose, group->getStore()),
      .rank = group->getRank(),
      .size = group->getSize(),
      .timeout_seconds = timeout_seconds,
      .host = own_address(where),
      .interfaces = where.interfaces};
  try {
    // The group stays alive until its store has served all ranks.
    return while_meeting<Mesh>(end, [group, place, plan, &traits, prepare_thread] {
      require_one_plan(*place.store, place.rank, place.size, plan);
      prepare_thread();
      return make_mesh_over(place, plan, traits);
    });
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    throw CommunicationError(
        fmt::format("Rank {} of {} of process group \"{}\" could not connect to its peers: {}. "
                    "Every rank of the group must make the same calls in the same order.",
                    place.rank, place.size, process_group, brief_reason(error)));
  }
}

}  // namespace longspan
