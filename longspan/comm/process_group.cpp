#include "longspan/comm/process_group.h"

#include <fmt/format.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "longspan/base/user_error.h"
#include "longspan/comm/backend.h"
#include "longspan/comm/link.h"
#include "longspan/plan/rank_groups.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/store.h"
#include "longspan/rendezvous/within.h"

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

void require_nccl(const std::string& process_group) {
  std::string backend;
  try {
    backend =
        process_group_named(process_group)->getBackend(c10::DeviceType::CUDA)->getBackendName();
  } catch (const c10::Error&) {  // the group has none for these devices
  }
  if (backend == "nccl") return;
  throw UserError(fmt::format(
      "tensors are on CUDA devices, and process group \"{}\" has {} for these devices, not nccl: "
      "call torch.distributed.init_process_group(\"cpu:gloo,cuda:nccl\"), or move the tensors to "
      "the CPU",
      process_group, backend.empty() ? "no backend" : backend));
}

Mesh mesh_of(const std::string& process_group, const std::string& purpose, const ParallelPlan& plan,
             const LinkTraits& traits, int64_t timeout_seconds, const Rendezvous& where) {
  const auto group = process_group_named(process_group);
  if (group->getSize() == 1) return {};
  // Ranks load models before the first meeting, and some machines load for many minutes.
  const std::chrono::seconds patience = patience_of(timeout_seconds);
  const auto deadline = [&](int64_t num_groups) {
    return std::chrono::steady_clock::now() + patience + num_groups * traits.time_to_meet;
  };
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
    while_meeting<bool>(deadline(1), [group, place, plan, &traits] {
      require_one_plan(*place.store, place.rank, place.size, plan, traits);
      return true;
    });
    const int64_t num_groups = std::ssize(connected_groups(plan));
    return while_meeting<Mesh>(deadline(num_groups), [group, place, plan, &traits, prepare_thread] {
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
