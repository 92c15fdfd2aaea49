#include "longspan/comm/link.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <stdexcept>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "longspan/comm/backend.h"
#include "longspan/cuda/cuda.h"
#include "longspan/rendezvous/communication_error.h"
#include "longspan/rendezvous/store.h"

namespace longspan {
namespace {

/// NCCL ends a process after a collective's timeout, without saying which rank is gone. This grace
/// lets the heartbeat, which can say it, come first; also where a host waits for other hosts.
constexpr int64_t kNcclGraceSeconds = 60;

/// kTimeToMeet for NCCL, which first inspects the links of all GPUs, for each group.
constexpr std::chrono::seconds kTimeToMeetOnGpus{90};

c10::DeviceType host() { return c10::DeviceType::CPU; }
c10::DeviceType gpus() { return load_cuda().type; }

std::function<void()> any_thread_will_do() {
  return [] {};
}

/// Each thread has its own current GPU, so new threads must set it.
std::function<void()> on_this_threads_gpu() {
  const int gpu = c10::impl::VirtualGuardImpl(gpus()).getDevice().index();
  return [gpu] { load_cuda().set_device(gpu); };
}

c10::intrusive_ptr<c10d::Backend> make_gloo(const GroupPlace& place) {
  return make_gloo_backend(place.store, place.rank, place.size, place.timeout_seconds, place.host,
                           place.interfaces);
}

c10::intrusive_ptr<c10d::Backend> make_gloo_beside_nccl(const GroupPlace& place) {
  GroupPlace patient = place;
  patient.timeout_seconds += kNcclGraceSeconds;
  return make_gloo(patient);
}

c10::intrusive_ptr<c10d::Backend> make_nccl(const GroupPlace& place) {
  return load_cuda().make_backend(place.store, place.rank, place.size,
                                  place.timeout_seconds + kNcclGraceSeconds,
                                  place.whole == nullptr ? nullptr : *place.whole, place.color);
}

constexpr LinkTraits gloo_traits(
    bool copies, c10::intrusive_ptr<c10d::Backend> (&make_backend)(const GroupPlace&) = make_gloo) {
  return {.device = host,
          .copies = copies,
          .coalesces = false,
          .ends_with_peers = false,
          .waits_for_none = false,
          .lets_go_late = true,
          .time_to_meet = kTimeToMeet,
          .reason_of = brief_reason,
          .prepare_threads = any_thread_will_do,
          .make_backend = make_backend};
}

constexpr LinkTraits kGlooTraits = gloo_traits(/*copies=*/false);
constexpr LinkTraits kGlooThroughHostTraits = gloo_traits(/*copies=*/true);
constexpr LinkTraits kGlooBesideNcclTraits = gloo_traits(/*copies=*/false, make_gloo_beside_nccl);
constexpr LinkTraits nccl_traits(bool scatters_sums) {
  return {.device = gpus,
          .copies = false,
          .coalesces = true,
          .ends_with_peers = true,
          .waits_for_none = true,
          .lets_go_late = false,
          .time_to_meet = kTimeToMeetOnGpus,
          .reason_of = reason_in_all_lines,
          .prepare_threads = on_this_threads_gpu,
          .make_backend = make_nccl,
          .of_hosts = &kGlooBesideNcclTraits,
          .scatters_sums = scatters_sums};
}

constexpr LinkTraits kNcclTraits = nccl_traits(/*scatters_sums=*/true);
constexpr LinkTraits kNcclByExchangeTraits = nccl_traits(/*scatters_sums=*/false);

}  // namespace

const LinkTraits& traits_of(Link link) {
  switch (link) {
    case Link::kGloo:
      return kGlooTraits;
    case Link::kNccl:
      return kNcclTraits;
    case Link::kNcclByExchange:
      return kNcclByExchangeTraits;
    case Link::kGlooThroughHost:
      return kGlooThroughHostTraits;
  }
  throw std::logic_error("no such link between ranks");
}

}  // namespace longspan
